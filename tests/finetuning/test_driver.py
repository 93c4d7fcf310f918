"""The driver, in this process and on GLUE: initial weights, kinds of tasks, what is reused, and refused inputs."""

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from mae_lm_fairseq.finetuning import sweep as finetuning
from mae_lm_fairseq.finetuning.driver import finetune
from mae_lm_fairseq.finetuning.options import GlueOptions
from mae_lm_fairseq.finetuning.sentences.adapter import task_settings
from mae_lm_fairseq.finetuning.sentences.evaluation import DataBinSets
from mae_lm_fairseq.finetuning.sentences.tasks import TASKS, predictions
from mae_lm_fairseq.trained.bundle import write_bundle
from mae_lm_fairseq.trained.opening import describe, open_pretrained
from mae_lm_fairseq.trained.reading import read_checkpoint
from mae_lm_fairseq.training.keys import MADE, Products
from mae_lm_fairseq.utils.errors import UserError
from mae_lm_fairseq.utils.files import read_record
from mae_lm_fairseq.utils.hashes import HASHES
from tests.support.finetuning import save_pretrained
from tests.support.glue import make_rows, write_official, write_tokenizer

pytestmark = pytest.mark.integration  # trains

KINDS = {
    "CoLA": ("mae_lm_tiny", ["matthews"]),
    "MRPC": ("mae_lm_roberta_tiny", ["f1", "accuracy"]),
    "STS-B": ("mae_lm_3ml_cross_tiny", ["pearson", "spearman"]),
    "MNLI": ("mae_lm_mask_later_tiny", ["accuracy", "accuracy_mismatched"]),
}


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    return write_tokenizer(tmp_path_factory.mktemp("tokenizer") / "data-bin")


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory, tokenizer):
    directory = tmp_path_factory.mktemp("pretrained")
    return {arch: save_pretrained(directory / f"{arch}.pt", tokenizer, arch) for arch, _ in KINDS.values()}


@pytest.fixture(scope="module")
def checkpoint(checkpoints):
    return checkpoints["mae_lm_tiny"]


@pytest.fixture(scope="module")
def glue_dir(tmp_path_factory):
    directory = tmp_path_factory.mktemp("glue")
    for task in TASKS.values():
        write_official(directory, task, make_rows(task))
    return directory


@pytest.fixture
def options(three_updates, glue_dir):
    """Return options for three updates on RTE from MAE-LM, in this process."""
    return GlueOptions(task="RTE", glue_dir=glue_dir, **three_updates)


def test_a_bundle_gives_the_results_of_its_checkpoint(options, checkpoints, tokenizer, tmp_path):
    write_bundle(read_checkpoint(checkpoints["mae_lm_tiny"], tokenizer), tmp_path / "bundle")
    content = finetune(replace(options, model=tmp_path / "bundle", data_bin=None, out=tmp_path / "b"))
    assert content["metrics"] == finetune(options)["metrics"]
    ours, theirs = (open_pretrained(out / "model").weights for out in (options.out, tmp_path / "b"))
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)
    assert content["start"]["checkpoint"] == f"{tmp_path.name}/bundle"
    (tmp_path / "bundle" / "config.json").write_text('{"model_type": "bert"}')
    (tmp_path / "bundle" / HASHES).unlink()
    with pytest.raises(UserError, match="mae-lm import"):
        finetune(replace(options, model=tmp_path / "bundle", out=tmp_path / "c"))


def test_the_starting_checkpoint_is_read_once_without_its_tensors(checkpoints, monkeypatch):
    """The state of the optimizer takes twice the memory of the weights, and neither is needed here."""
    loaded, load = [], torch.load

    def load_and_note(*arguments, **options):
        loaded.append(options.get("mmap"))
        return load(*arguments, **options)

    monkeypatch.setattr(torch, "load", load_and_note)
    assert describe(checkpoints["mae_lm_tiny"]).about.architecture == "mae_lm_tiny"
    assert loaded == [True]


@pytest.mark.parametrize("name", KINDS)
def test_every_kind_of_task_starts_from_every_kind_of_pretraining(options, checkpoints, name):
    """Batched predictions equal those made one by one."""
    task, (arch, metrics) = TASKS[name], KINDS[name]
    content = finetune(replace(options, task=name, model=checkpoints[arch]))
    assert (content["start"]["_name"], content["start"]["from"]) == (arch, "a pretrained model")
    assert content == read_record(options.out / "results.json")
    assert list(content["metrics"]) == [*metrics, "score"]
    assert f"| 0.001 | {metrics[0]} |" in (options.out / "report.md").read_text()
    [run] = options.out.glob(f"runs/{content['test_predictions_by']}-*/checkpoints/*.pt")
    saved = torch.load(run, weights_only=True)
    assert "last_optimizer_state" not in saved
    # The shape comes from the checkpoint, not from the architecture.
    assert saved["model"]["autoencoder.encoder.embed_tokens.weight"].shape[1] == 16
    sets = DataBinSets(run, options.out / "data-bin")
    logits = sets.logits("valid")
    dataset, singly = sets._task.dataset("valid"), []
    for row in range(len(dataset)):
        tokens = dataset[row]["net_input.src_tokens"][None]
        singly.append(sets.model(tokens, features_only=True, classification_head_name=name)[0].detach().numpy()[0])
    # Rows of a batch are computed together, which rounds differently in float32.
    np.testing.assert_allclose(logits, singly, rtol=0, atol=1e-5)
    files = ["MNLI-m.tsv", "MNLI-mm.tsv"] if name == "MNLI" else [f"{name}.tsv"]
    assert sorted(path.name for path in options.out.glob("*.tsv")) == files
    assert len((options.out / files[0]).read_text().splitlines()) == 13
    if name == "MNLI":
        labels = [task.labels.index(row["label"]) for row in make_rows(task)["dev_matched"]]
        accuracy = 100 * np.mean(predictions(task, logits) == labels)
        assert content["metrics"]["accuracy"]["values"] == [accuracy]


def test_a_new_row_names_its_metrics_and_further_options_reach_fairseq(options, glue_dir, monkeypatch):
    row = replace(TASKS["RTE"], name="RTE2", metrics=("macro_f1", "matthews"), also_reported=("f1",))
    monkeypatch.setitem(TASKS, "RTE2", row)
    extra = ("--layer-lr-decay", "0.5", "--autocast", "bf16", "--best-checkpoint-metric", "mcc")
    content = finetune(replace(options, task="rte2", glue_dir=glue_dir / "RTE", extra=extra))
    assert list(content["metrics"]) == ["macro_f1", "matthews", "f1", "score"]
    assert (options.out / "RTE2.tsv").exists()
    assert f"override the recipe's: `{' '.join(extra)}`" in (options.out / "report.md").read_text()
    [kept] = options.out.glob("runs/*/checkpoints/checkpoint_best.pt")
    used = torch.load(kept, weights_only=True)["cfg"]
    assert (used["optimizer"]["layer_lr_decay"], used["model"]["autocast"]) == (0.5, "bf16")
    assert used["checkpoint"]["best_checkpoint_metric"] == "mcc"
    assert used["criterion"]["report_mcc"]
    model = DataBinSets(kept, options.out / "data-bin").model
    assert model.autocast == "none"  # evaluation is in float32


def test_the_metric_that_selects_checkpoints_is_computed_and_maximized_unless_it_is_a_loss():
    for metric, option in {"mcc": "report_mcc", "f1": "report_acc_and_f1", "acc_and_f1": "report_acc_and_f1"}.items():
        settings = task_settings(TASKS["RTE"], metric)
        assert settings["criterion"][option]
        assert settings["checkpoint"] == {"best_checkpoint_metric": metric, "maximize_best_checkpoint_metric": True}
    assert task_settings(TASKS["RTE"], "loss")["checkpoint"] == {"best_checkpoint_metric": "loss"}


def test_wrong_inputs_are_refused_before_the_training(options, checkpoints, tokenizer, tmp_path):
    other = write_tokenizer(tmp_path / "other", seed=5)
    (tmp_path / "damaged.pt").write_bytes(checkpoints["mae_lm_tiny"].read_bytes()[:5000])
    write_bundle(read_checkpoint(checkpoints["mae_lm_tiny"], tokenizer), tmp_path / "bundle")
    (tmp_path / "bundle" / "model.safetensors").write_bytes(b"damaged")
    wrong = {
        "x: File name too long": {"model": tmp_path / ("x" * 300)},
        "x has no tokenizer": {"data_bin": tmp_path / ("x" * 300)},
        "damaged.pt": {"model": tmp_path / "damaged.pt"},
        "model.safetensors": {"model": tmp_path / "bundle"},
        "not the tokenizer of": {"data_bin": other},
        "roberta_base": {"model": Path("roberta_base")},
        "--data-bin mae_lm_tiny": {"model": Path("mae_lm_tiny"), "data_bin": None},
        "mae_lm_tiny: No such file": {"model": Path("mae_lm_tiny"), "ema": True},
        "train of RTE": {"glue_dir": tmp_path / "other"},
    }
    for message, changes in wrong.items():
        with pytest.raises(UserError, match=message):
            finetune(replace(options, **changes))
        assert not options.out.exists() or "glue_dir" in changes


def test_other_options_and_files_train_anew_and_the_same_ones_reuse_everything(options, tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(finetuning, "write_bundle", lambda *_: sys.exit("killed"))
        with pytest.raises(SystemExit):
            finetune(options)
    assert not (options.out / "model").exists()
    first = finetune(options)
    model = open_pretrained(options.out / "model")
    assert model.about.development_set
    write_official(tmp_path / "glue", TASKS["RTE"], make_rows(TASKS["RTE"]))
    write_official(tmp_path / "changed", TASKS["RTE"], make_rows(TASKS["RTE"], 8))
    runs = options.out / "runs"
    for number, changes in enumerate(
        ({"glue_dir": tmp_path / "glue"}, {"max_updates": 1}, {"glue_dir": tmp_path / "changed"}, {"threads": 2}), 1
    ):
        finetune(replace(options, **changes))
        assert len([*runs.iterdir()]) == number
    assert finetune(options) == first
    assert len([*runs.iterdir()]) == 4
    again = open_pretrained(options.out / "model").weights
    assert all(torch.equal(again[name], weight) for name, weight in model.weights.items())


def test_files_that_the_command_would_overwrite_are_kept(options):
    for name in ("RTE.tsv", "runs"):
        options.out.mkdir()
        (options.out / name).write_text("foreign")
        with pytest.raises(UserError, match=f"has {name} but no made.json"):
            finetune(options)
        (options.out / name).unlink()
        options.out.rmdir()


def test_a_directory_of_another_command_is_left_as_it_is(options, checkpoints, tmp_path):
    """Even if the checkpoint to start from is written first, as with --ema."""
    state = torch.load(checkpoints["mae_lm_tiny"], weights_only=True)
    state["extra_state"]["ema"] = state["model"]
    torch.save(state, tmp_path / "checkpoint.pt")
    options = replace(options, model=tmp_path / "checkpoint.pt", ema=True)
    Products(options.out, "mae-lm adapt", ())
    with pytest.raises(UserError, match="has the results of mae-lm adapt"):
        finetune(options)
    assert [path.name for path in options.out.iterdir()] == [MADE]


def test_a_directory_of_an_earlier_version_is_resumed(options):
    Products(options.out, "fine-tuning with GlueOptions", ())
    finetune(options)
    with pytest.raises(UserError, match="has the results of fine-tuning with GlueOptions"):
        Products(options.out, "mae-lm adapt", ())
