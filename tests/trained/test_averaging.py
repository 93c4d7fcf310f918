"""Averaged weights of checkpoints, and the verbs that use them."""

from argparse import Namespace

import pytest
import torch
from safetensors.torch import load_file

from mae_lm_fairseq import MAELMModel
from mae_lm_fairseq.finetuning.options import FinetuningOptions
from mae_lm_fairseq.finetuning.start import find_start, start_content
from mae_lm_fairseq.trained.opening import open_pretrained
from mae_lm_fairseq.trained.reading import read_bundle
from mae_lm_fairseq.utils.errors import UserError
from tests.support.bundles import TEXT, saved
from tests.support.commands import run_verb
from tests.support.comparisons import assert_equal
from tests.support.finetuning import finetune, write_sentences
from tests.support.processes import run_command
from tests.support.refusals import refused
from tests.support.weights import encoder_of

EMBEDDINGS = "autoencoder.encoder.embed_tokens.weight"


@pytest.fixture(scope="module")
def with_ema(checkpoints, tmp_path_factory):
    """Write a checkpoint whose EMA weights are 2 below the model's."""
    state = saved(checkpoints["mae_lm_tiny"])
    state["extra_state"]["ema"] = {name: weight - 2 for name, weight in state["model"].items()}
    torch.save(state, path := tmp_path_factory.mktemp("ema") / "checkpoint.pt")
    return path


def assert_is_ema(weights, checkpoint):
    expected = saved(checkpoint)["model"]
    assert weights
    assert all(torch.equal(weight, expected[name] - 2) for name, weight in weights.items())


def test_a_bundle_of_the_ema_weights(with_ema, text_data, tmp_path):
    run_verb("bundle", with_ema, "--data-bin", text_data, "--out", tmp_path / "bundle", "--ema")
    written = read_bundle(tmp_path / "bundle")
    assert_is_ema(written.weights, with_ema)
    assert written.about.averaged == "EMA"
    assert_is_ema(MAELMModel.from_pretrained(with_ema, text_data, ema=True).model.state_dict(), with_ema)
    assert open_pretrained(with_ema, text_data).about.averaged is None


def test_an_export_of_the_ema_weights(with_ema, text_data, tmp_path):
    run_verb("export", with_ema, "--data-bin", text_data, "--out", tmp_path / "exported", "--ema")
    norm = load_file(tmp_path / "exported/model.safetensors")["embeddings.LayerNorm.weight"]
    assert torch.equal(norm, torch.full_like(norm, -1))


def test_fine_tuning_starts_from_the_ema_weights(with_ema, text_data, tmp_path):
    start = find_start(FinetuningOptions(model=with_ema, data_bin=text_data, out=tmp_path / "out", ema=True))
    assert start_content(start)["checkpoint"] == "ema/checkpoint.pt"
    sentences = write_sentences(tmp_path / "sentences", text_data / "dict.txt")
    tuned = finetune(*(sentences, tmp_path / "tuned", "--finetune-from-model", start.path, "--lr 0 --max-update 1"))
    assert_is_ema(encoder_of(tuned["model"]), with_ema)


MEASURING = {
    "evaluate": ["--text text --tokens-per-sample 40"],
    "minimal-pairs": ["--pairs pairs --out out"],
    "probe": ["--train words --test words --column UPOS --out out"],
    "rank": ["--text text --out out --tokens-per-sample 40"],
    "retrieval": ["--questions questions.tsv --passages questions.tsv --out out"],
}


@pytest.mark.parametrize("command", MEASURING)
def test_measurements_read_the_ema_weights(command, with_ema, text_data, tmp_path, monkeypatch):
    """Each reads a model twice: for checks and for the measurement, which this test leaves out."""
    (tmp_path / "text").write_text("\n".join(TEXT), encoding="utf-8")
    (tmp_path / "pairs").mkdir()
    (tmp_path / "pairs/zorro.txt").write_text("the dog sleep\nthe dog sleeps\n")
    words = (["1", "the", "_", "DET", *"______"], ["2", "dog", "_", "NOUN", *"______"])
    (tmp_path / "words").write_text("\n".join(map("\t".join, words)) + "\n\n")
    (tmp_path / "questions.tsv").write_text("_id\ttext\tcorpus-id\n1\tthe dog\t1\n")
    monkeypatch.chdir(tmp_path)
    opened = []

    def record(*arguments):
        opened.append(open_pretrained(*arguments))
        if len(opened) == 2:
            raise UserError("read")
        return opened[-1]

    monkeypatch.setattr("mae_lm_fairseq.measures.readers.open_pretrained", record)
    with refused(r"^read$"):
        run_verb(command, with_ema, "--data-bin", text_data, *MEASURING[command], "--ema")
    for pretrained in opened:
        assert_is_ema(pretrained.weights, with_ema)


@pytest.fixture
def run_of(checkpoints, tmp_path):
    """Write checkpoints of updates 10, 20 and 30 of a run, whose weights are 0, 1 and 5 higher."""
    state = saved(checkpoints["shared_positions"])
    for updates, higher, name in ((10, 0, "_1_10"), (20, 1, "_1_20"), (30, 5, "2")):
        state["optimizer_history"][-1]["num_updates"] = updates
        weights = {name: weight + higher for name, weight in state["model"].items()}
        torch.save({**state, "model": weights}, tmp_path / f"checkpoint{name}.pt")
    return tmp_path


def averaged(directory, *names):
    """Return the content of the average of checkpoints."""
    run_verb("average", *(directory / name for name in names), "--out", directory / "mean.pt")
    return saved(directory / "mean.pt")


class TestAverage:
    @pytest.mark.integration  # starts a process
    def test_checkpoints_of_fairseq_train_in_a_new_process(self, run_of):
        """A Namespace in them is read as data once this package is registered."""
        torch.save(saved(run_of / "checkpoint2.pt") | {"args": Namespace(seed=1)}, run_of / "checkpoint2.pt")
        done = run_command(["mae-lm", "average", run_of / "checkpoint2.pt", "--out", run_of / "mean.pt"])
        assert (done.returncode, (run_of / "mean.pt").exists()) == (0, True), done.stderr

    def test_mean_of_checkpoints(self, run_of, checkpoints, text_data, capsys):
        mean = averaged(run_of, "checkpoint_1_20.pt", "checkpoint2.pt")
        assert capsys.readouterr().out == f"{run_of / 'mean.pt'}: mean of checkpoint_1_20.pt, checkpoint2.pt\n"
        for name, weight in saved(checkpoints["shared_positions"])["model"].items():
            assert torch.equal(mean["model"][name], (((weight + 1).double() + (weight + 5)) / 2).float())
        assert mean["model"][EMBEDDINGS].data_ptr() == mean["model"]["autoencoder.lm_head.weight"].data_ptr()
        assert mean["optimizer_history"][-1]["num_updates"] == 30
        assert "last_optimizer_state" not in mean
        about = open_pretrained(run_of / "mean.pt", text_data).about
        assert about.averaged == "mean of 2 checkpoints, updates 20, 30"

    def test_options_of_training_may_differ(self, run_of):
        state = saved(run_of / "checkpoint_1_20.pt")
        state["cfg"]["model"] |= {"dropout": 0.3, "relative_bias_init": "normal"}
        torch.save(state, run_of / "other.pt")
        assert averaged(run_of, "checkpoint_1_10.pt", "other.pt")

    def test_checkpoints_may_have_options_and_weights_alone(self, run_of):
        state = saved(run_of / "checkpoint_1_20.pt")
        path = run_of / "published.pt"
        torch.save({name: state[name] for name in ("cfg", "model")}, path)
        weights = averaged(run_of, "published.pt", "published.pt")["model"]
        assert_equal(weights, state["model"])
        with refused(r"published\.pt: .* mae-lm bundle"):
            find_start(FinetuningOptions(model=path, out=run_of / "out"))

    def test_half_precision_is_averaged_in_float32(self, run_of, text_data):
        names = ("checkpoint_1_10.pt", "checkpoint_1_20.pt")
        halves = []
        for name in names:
            state = saved(run_of / name)
            weights = {key: weight.half() for key, weight in state["model"].items()}
            torch.save(state | {"model": weights}, run_of / name)
            halves.append(weights[EMBEDDINGS].double())
        averaged(run_of, *names)
        mean = open_pretrained(run_of / "mean.pt", text_data).weights[EMBEDDINGS]
        assert mean.dtype == torch.float32
        assert torch.equal(mean, (sum(halves) / 2).float())

    @pytest.mark.parametrize(
        ("words", "message"),
        [
            (["checkpoint_1_10.pt", "other.pt"], "different networks: encoder_attention_heads is 4 and 2$"),
            (["checkpoint_1_10.pt", "out.pt"], r"--out out\.pt is one of the checkpoints"),
        ],
    )
    def test_mistakes_are_named(self, run_of, words, message, monkeypatch):
        monkeypatch.chdir(run_of)
        state = saved(run_of / "checkpoint_1_20.pt")
        state["cfg"]["model"]["encoder_attention_heads"] = 2
        torch.save(state, "other.pt")
        with refused(message):
            run_verb("average", *words, "--out out.pt")
        assert not (run_of / "out.pt").exists()
