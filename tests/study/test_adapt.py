"""``mae-lm adapt``: what its options change, and the models that it starts from; end_to_end/test_adapt.py trains."""

import json
import math
import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from mae_lm_fairseq.study.adapt import OWNED, as_objective, loss_of_last_tenth, main, make_inputs, read_model
from mae_lm_fairseq.study.adapt_options import Options, with_defaults
from mae_lm_fairseq.study.adapt_plan import evaluation_options, plan_of
from mae_lm_fairseq.study.adapt_report import harm
from mae_lm_fairseq.study.objectives import objective_of
from mae_lm_fairseq.study.run_files import Training
from mae_lm_fairseq.study.runs import train_options
from mae_lm_fairseq.text.tokenizer_files import find_tokenizer
from mae_lm_fairseq.trained.bundle import write_bundle
from mae_lm_fairseq.trained.conversion import predicts, preset_of
from mae_lm_fairseq.trained.huggingface.exporter import export_stock
from mae_lm_fairseq.trained.huggingface.importer import import_foreign
from mae_lm_fairseq.trained.opening import open_pretrained
from mae_lm_fairseq.trained.reading import read_checkpoint
from mae_lm_fairseq.training.command import arguments
from mae_lm_fairseq.training.keys import MADE, Products
from mae_lm_fairseq.utils.command_line import parse
from mae_lm_fairseq.utils.errors import UserError
from tests.support import ROOT
from tests.support.bundles import TEXT
from tests.support.exports import pretrained
from tests.support.families import stock_model
from tests.support.huggingface import save_model, tiny_masked_lm, tiny_model
from tests.support.tokenizers import make

FLAGS = {
    "--updates 50": {
        *("--max-update 50", "--total-num-update 50", "--warmup-updates 3"),
        *("--save-interval-updates 2", "--save-interval 51"),
    },
    "--learning-rate 2e-3": {"--lr 0.002"},
    "--batch-size 5000": {"--max-tokens 1667", "--update-freq 3"},
    "--tokens-per-sample 20": {"--tokens-per-sample 20"},
    "--mask-prob 0.3": {"--mask-prob 0.3"},
    "--freeze-encoder-updates 7": {"--freeze-encoder-updates 7"},
    "--layer-lr-decay 0.8": {"--layer-lr-decay 0.8"},
    "--seed 3": {"--seed 3"},
    "--objective mlm": {"--arch mae_lm_roberta_tiny", "--leave-unmasked-prob 0.1", "--random-token-prob 0.1"},
    "--objective 3ml": {"--arch mae_lm_3ml_self_tiny", "--mask-prob 0.5"},
}
"""Flags of adapt, and the options of fairseq-train that they change."""


def options(out: Path, *flags: str, model: Path | str = "model") -> Options:
    words = [str(model), "--train", "train.txt", "--valid", "valid.txt", "--out", str(out), *flags]
    return with_defaults(parse(Options, words, None, "mae-lm adapt"))


def options_of_training(model, out: Path, *flags: str) -> set[str]:
    """Return the options of fairseq-train, with their values, for flags of adapt."""
    chosen = options(out, *flags)
    plan = plan_of(as_objective(model, chosen), chosen, [])
    training = Training(plan.models[0], None, chosen.seed)
    trained = train_options(plan, training, plan.train.updates, out / "checkpoints")
    command = " ".join(arguments("", trained)).replace(str(out), "OUT")
    return {f"--{word.strip()}" for word in command.split(" --")[1:]}


@pytest.fixture(scope="module")
def usual(tmp_path_factory):
    model = pretrained(tokenizer=make("byte-bpe"))
    return model, options_of_training(model, tmp_path_factory.mktemp("usual") / "out")


def test_a_batch_holds_the_longest_sequence(usual, tmp_path, monkeypatch):
    monkeypatch.setattr("mae_lm_fairseq.study.adapt_plan.batch_tokens", lambda: 8)
    changed = options_of_training(usual[0], tmp_path / "out", "--tokens-per-sample", "20", "--batch-size", "50")
    assert changed >= {"--max-tokens 20", "--update-freq 3"}


@pytest.mark.parametrize("flag", FLAGS)
def test_each_flag_changes_the_training(usual, tmp_path, flag, monkeypatch):
    monkeypatch.setattr("mae_lm_fairseq.study.adapt_plan.batch_tokens", lambda: 2048)
    model, before = usual
    changed = options_of_training(model, tmp_path / "out", *flag.split()) - before
    assert changed >= FLAGS[flag]


def test_options_of_fairseq_train_take_precedence(usual, tmp_path):
    chosen = replace(options(tmp_path), extra=("--dropout", "0.3", "--lr=2", "--fp16-no-flatten-grads"))
    trained = plan_of(as_objective(usual[0], chosen), chosen, []).options
    assert (trained["dropout"], trained["lr"], trained["fp16-no-flatten-grads"]) == ("0.3", "2", True)


@pytest.mark.parametrize(
    ("preset", "flags", "objective", "trained"),
    [
        ("mae_lm_mask_later", "", "mask_later", {"--arch mae_lm_mask_later_tiny", "--mask-prob 0.15"}),
        ("mae_lm_mask_later", "--objective 3ml", "3ml", {"--arch mae_lm_3ml_self_tiny", "--mask-prob 0.5"}),
        ("mae_lm_exlm_decoder", "", "exlm", {"--arch mae_lm_exlm_decoder_tiny", "--mask-prob 0.15"}),
        ("mae_lm_exlm", "--objective mae_lm", "mae_lm", {"--arch mae_lm_tiny", "--mask-prob 0.15"}),
        ("mae_lm_3ml_cross", "--objective 3ml", "3ml", {"--arch mae_lm_3ml_cross_tiny", "--mask-prob 0.5"}),
    ],
)
def test_presets_that_are_no_objective(preset, flags, objective, trained, tmp_path):
    model = pretrained(preset, tokenizer=make("byte-bpe"))
    chosen = options(tmp_path, *flags.split())
    assert objective_of(as_objective(model, chosen)) == objective
    assert options_of_training(model, tmp_path / "out", *flags.split()) >= trained


def test_the_seed_draws_the_new_head(tmp_path):
    stock = save_model(tmp_path / "bert", "bert", ["the", "fox"], tiny_model)
    name = "autoencoder.lm_head.dense.weight"
    heads = [read_model(options(tmp_path, "--seed", seed, model=stock)).weights[name] for seed in "121"]
    assert torch.equal(heads[0], heads[2])
    assert not torch.equal(heads[0], heads[1])
    model = pretrained("mae_lm_roberta", tokenizer=make("byte-bpe"))
    name = "autoencoder.decoder.layers.0.fc1.weight"
    first, second = (as_objective(model, options(tmp_path, "--objective", "mae_lm", "--seed", seed)) for seed in "12")
    assert not torch.equal(first.weights[name], second.weights[name])


def test_the_loss_of_the_last_tenth(tmp_path):
    log = tmp_path / "training-20.log"
    log.write_text("")
    assert loss_of_last_tenth(log) is None
    record = 'x | INFO | train_inner | {{"loss": "{}", "wpb": "400", "wps": "800", "num_updates": "{}"}}\n'
    log.write_text("".join(record.format(2 if update > 18 else 9, update) for update in range(1, 21)))
    assert loss_of_last_tenth(log) == pytest.approx(2 * math.log(2))


@pytest.mark.parametrize(
    ("updates", "tokens", "pseudo_tokens"), [(1, 1250, 50), (100, 20_480, 819), (1000, 50_000, 2000)]
)
def test_short_trainings_are_measured_on_less_text(updates, tokens, pseudo_tokens, tmp_path):
    measured = evaluation_options(options(tmp_path, "--updates", str(updates)))
    assert (measured["tokens"], measured["pseudo_tokens"]) == (tokens, pseudo_tokens)


def test_a_model_of_transformers_starts_with_its_own_predictions(tmp_path):
    """The loss is measured before the training, whatever the objective; the new decoder's would mean nothing."""
    stock = save_model(tmp_path / "bert", "bert", ["the", "fox"], tiny_masked_lm)
    chosen = options(tmp_path / "out", "--objective", "mae_lm", model=stock)
    start = read_model(chosen)
    assert predicts(start)
    assert preset_of(start) == "mae_lm_roberta"
    assert preset_of(as_objective(start, chosen)) == "mae_lm"


def splits(directory: Path) -> list[str]:
    """Write a text and a held-out text, and return their flags."""
    for split in ("train", "valid"):
        (directory / f"{split}.txt").write_text("\n".join(TEXT) + "\n", encoding="utf-8")
    return ["--train", str(directory / "train.txt"), "--valid", str(directory / "valid.txt")]


def test_models_that_cannot_be_exported_are_refused_at_the_start(tmp_path):
    write_bundle(pretrained(tokenizer=make("gpt2")), tmp_path / "bundle")  # with another padding than MPNet's
    chosen = options(tmp_path / "out", *splits(tmp_path), model=tmp_path / "bundle")
    with pytest.raises(UserError, match="transformers' MPNet takes"):
        make_inputs(Products(chosen.out, "mae-lm adapt", OWNED), chosen)
    assert {path.name for path in chosen.out.iterdir()} == {MADE, "start"}


def test_a_sentence_encoder_is_trained_gently(tmp_path):
    encoder = tmp_path / "encoder"
    encoder.mkdir()
    (encoder / "modules.json").write_text("[]")

    def gentle(model: Path, *flags: str) -> tuple[float, int]:
        chosen = options(tmp_path / "out", "--updates", "50", *flags, model=model)
        return chosen.learning_rate, chosen.freeze_encoder_updates

    assert gentle(tmp_path / "plain") == (1e-4, 0)
    assert gentle(encoder) == (3e-5, 25)
    assert gentle(encoder, "--learning-rate", "3e-3", "--freeze-encoder-updates", "0") == (3e-3, 0)


def test_the_warning_has_the_figures_of_the_page():
    warning = harm({"questions": None})
    page = (ROOT / "docs" / "adapting.md").read_text(encoding="utf-8")
    rows = {"before": "", "3e-5, encoder frozen in the first half": "MLM", "1e-4": "MLM"}
    figures = []
    for setting, objective in rows.items():
        figures += re.findall(rf"^\| {re.escape(setting)} \| *{objective} *\| ([\d.]+) \|", page, re.MULTILINE)
    assert len(figures) == 3
    assert re.findall(r"\d+\.\d", warning) == figures
    assert "--questions" in warning
    assert "--questions" not in harm({"questions": "dev.json"})


@pytest.mark.parametrize("kind", ["transformers", "bundle"])
@pytest.mark.parametrize("is_sentence_encoder", [True, False])
def test_a_sentence_encoder_is_recognised_before_the_work(kind, is_sentence_encoder, tmp_path, caplog):
    stock_model(tmp_path / "stock", "bert")
    if is_sentence_encoder:
        kinds = [("Transformer", ""), ("Pooling", "1_Pooling"), ("Dense", "2_Dense")]
        modules = [{"path": path, "type": f"sentence_transformers.models.{kind}"} for kind, path in kinds]
        (tmp_path / "stock" / "modules.json").write_text(json.dumps(modules))
        (tmp_path / "stock" / "1_Pooling").mkdir()
        (tmp_path / "stock" / "1_Pooling" / "config.json").write_text("{}")
    write_bundle(import_foreign(tmp_path / "stock", "mae_lm_roberta"), tmp_path / "bundle")
    model = tmp_path / {"transformers": "stock", "bundle": "bundle"}[kind]
    with pytest.raises(UserError, match=r"no such file"):  # nothing has been done yet
        main(options(tmp_path / "out", model=model))
    assert ("harms sentence vectors" in caplog.text) == is_sentence_encoder
    is_first_import = is_sentence_encoder and kind == "transformers"
    assert ("2_Dense (sentence_transformers.models.Dense) is not imported" in caplog.text) == is_first_import


def test_an_import_with_a_task_head_can_be_adapted(tmp_path):
    stock_model(tmp_path / "stock", "bert", "ForSequenceClassification")
    write_bundle(import_foreign(tmp_path / "stock", "mae_lm_roberta"), tmp_path / "bundle")
    chosen = options(tmp_path / "out", *splits(tmp_path), model=tmp_path / "bundle")
    model = as_objective(make_inputs(Products(chosen.out, "mae-lm adapt", OWNED), chosen), chosen)
    assert export_stock(model, tmp_path / "again") == "BertForMaskedLM"


def test_a_checkpoint_starts_with_its_data_bin(checkpoints, text_data, tmp_path):
    texts = splits(tmp_path)
    chosen = options(tmp_path / "out", "--data-bin", str(text_data), *texts, model=checkpoints["mae_lm_tiny"])
    make_inputs(Products(chosen.out, "mae-lm adapt", OWNED), chosen)
    start, original = (
        open_pretrained(tmp_path / "out" / "start"),
        read_checkpoint(checkpoints["mae_lm_tiny"], text_data),
    )
    assert start.config == original.config
    assert all(torch.equal(weight, start.weights[name]) for name, weight in original.weights.items())
    assert find_tokenizer(tmp_path / "out" / "data-bin").symbols == original.tokenizer.symbols
    assert (tmp_path / "out" / "held-out.txt").read_text(encoding="utf-8").splitlines() == TEXT
