"""Wrapped encoders: from ``mae-lm adapt``, killed and resumed, to ``transformers``, and with heads of tasks."""

from pathlib import Path

import pytest
import torch

from mae_lm_fairseq import MAELMModel
from mae_lm_fairseq.finetuning import sweep
from mae_lm_fairseq.trained.huggingface.families import FAMILIES
from mae_lm_fairseq.trained.huggingface.importer import network_options
from mae_lm_fairseq.trained.opening import open_pretrained
from mae_lm_fairseq.wrapped.encoder import KINDS
from tests.end_to_end.test_adapt import arguments, main
from tests.end_to_end.test_pretrain import checkpoint
from tests.support.commands import run_verb
from tests.support.comparisons import assert_close, assert_equal
from tests.support.families import save_tokenizer, stock_logits, stock_states
from tests.support.finetuning import run_here
from tests.support.processes import fork, kill_with_children, runs_in_children, wait_for
from tests.support.tokenizers import paragraphs
from tests.support.weights import encoder_of
from tests.support.wrapped import stock

ALL = [
    "modernbert",
    *(pytest.param(x, marks=pytest.mark.slow) for x in sorted(KINDS.keys() - FAMILIES - {"modernbert"})),
]


@pytest.fixture(scope="module", params=ALL)
def adapted(request, text, tmp_path_factory) -> Path:
    """Adapt a model with more rows of embeddings than tokens; the run is killed, and started again."""
    out = tmp_path_factory.mktemp(request.param)
    vocabulary = save_tokenizer(out / "stock", "bert").get_vocab_size()
    changes = {"pad": 0, "vocab_size": vocabulary + 5, "num_hidden_layers": 4, "initializer_range": 0.02}
    stock(request.param, **changes).save_pretrained(out / "stock")
    command = arguments(out / "stock", text, out / "adapted", "--objective mae_lm")
    with runs_in_children():
        killed = fork(main, command)
        wait_for(lambda: [*out.glob("adapted/runs/*/checkpoints/checkpoint_last.pt")])
        kill_with_children(killed)
        main(command)
        main([*command, "--out", str(out / "unbroken")])
    return out


def test_a_resumed_adaptation_equals_an_unbroken_one(adapted):
    [log] = adapted.glob("adapted/runs/*/training-20.log")
    assert "Loaded checkpoint" in log.read_text()
    assert "tflops" not in log.read_text()  # no formula of this package describes its layers
    weights, unbroken = (open_pretrained(adapted / name / "model").weights for name in ("adapted", "unbroken"))
    assert_equal(weights, unbroken)
    before = open_pretrained(adapted / "adapted/start").weights
    assert any(not torch.equal(weight, before[name]) for name, weight in encoder_of(weights).items())


def test_transformers_loads_what_was_trained(adapted):
    line = paragraphs(1, 3)[0][:60]
    ours = MAELMModel.from_pretrained(adapted / "adapted/model").extract_features(line)
    assert_close(ours, stock_states(adapted / "adapted/stock", [line]), 1e-5)


def test_two_processes_train_as_one(adapted, fairseq_train, train_together, tmp_path):
    """Sums in another order round differently in float32, which Adam amplifies."""
    run = adapted / "adapted"
    words = "--task masked_autoencoder_lm --criterion masked_autoencoder_lm --optimizer adam --lr 1e-3 --cpu"
    words += " --tokens-per-sample 32 --batch-size 16 --max-update 3 --num-workers 0 --disable-validation"
    words += " --user-dir mae_lm_fairseq --dropout 0 --attention-dropout 0"
    network = network_options(open_pretrained(run / "initial"))
    command = [run / "data-bin", *network, *words.split(), "--finetune-from-model", run / "initial"]
    alone = fairseq_train(*command, "--update-freq 2 --save-dir", tmp_path / "one")
    together = train_together(2, *command, "--save-dir", tmp_path / "two")
    assert (alone.returncode, together.returncode) == (0, 0), alone.stderr + together.stderr
    weights, others = (checkpoint(tmp_path / name)["model"] for name in ("one", "two"))
    for name, weight in weights.items():
        assert_close(weight, others[name], 1e-4)


def test_a_fine_tuned_head_is_exported_as_the_type_s_own(adapted, tmp_path, monkeypatch):
    monkeypatch.setattr(sweep, "run_all", run_here)
    rows = [(line[:40], "ab"[len(line) % 2]) for line in paragraphs(40)]
    (tmp_path / "train.tsv").write_text("text\tkind\n" + "".join(f"{text}\t{kind}\n" for text, kind in rows))
    model, file, out = adapted / "adapted/model", tmp_path / "train.tsv", tmp_path / "out"
    words = ["--text text --label kind --data-bin", model, "--out", out]
    words += ["--learning-rates 1e-3 --seeds 1 --max-updates 4"]
    run_verb("finetune classification", model, "--train", file, "--dev", file, *words)
    run_verb("export", out / "model", "--out", tmp_path / "stock")
    ours = MAELMModel.from_pretrained(out / "model")
    texts = [text for text, _ in rows[:5]]
    expected = torch.cat([stock_logits(tmp_path / "stock", [text]) for text in texts])
    logits = ours.predict("sentence_classification_head", texts, return_logits=True)
    assert_close(logits, expected, 1e-5)
