"""``mae-lm finetune glue --from-mnli``: RTE, MRPC and STS-B start from a model fine-tuned on MNLI."""

import pytest
import torch

from mae_lm_fairseq.finetuning import sweep as finetuning
from mae_lm_fairseq.finetuning.sentences.tasks import TASKS
from mae_lm_fairseq.utils.files import read_json
from tests.support.commands import run_verb
from tests.support.finetuning import run_here, save_pretrained
from tests.support.glue import make_rows, write_official, write_tokenizer
from tests.support.refusals import refused
from tests.support.weights import encoder_of

pytestmark = pytest.mark.integration  # trains


def encoder_and_heads(checkpoint):
    weights = torch.load(checkpoint, weights_only=True)["model"]
    heads = {name.split(".")[1] for name in weights if name.startswith("classification_heads.")}
    return encoder_of(weights), heads


def largest_difference(weights, other):
    return max((weights[name] - other[name]).abs().max().item() for name in other)


# A checkpoint of a run, or the bundle of the best one, which has a tokenizer.
STARTS = {"RTE": "model", "MRPC": "checkpoint", "STS-B": "model"}


def test_rte_mrpc_and_sts_b_start_from_mnli(tmp_path, monkeypatch):
    monkeypatch.setattr(finetuning, "run_all", run_here)
    tokenizer = write_tokenizer(tmp_path / "data-bin")
    pretrained = save_pretrained(tmp_path / "pretrained.pt", tokenizer, "mae_lm_tiny")
    results = tmp_path / "results"
    for name in ("MNLI", *STARTS):
        write_official(tmp_path / "glue", TASKS[name], make_rows(TASKS[name], 48))

    def finetune(name, checkpoint, rate, *more):
        words = [name, checkpoint, "--glue-dir", tmp_path / "glue", "--data-bin", tokenizer, "--seeds", 1]
        words += ["--learning-rates", rate, "--max-updates", 6, "--out", results / name, *more]
        run_verb("finetune glue", *words)
        content = read_json(results / name / "results.json")
        [kept] = results.glob(f"{name}/runs/{content['test_predictions_by']}-*/checkpoints/*.pt")
        return content, kept

    _, mnli = finetune("MNLI", pretrained, 1e-2, "--data-bin", tokenizer)
    for message, start, more in (
        ("has already been fine-tuned on MNLI", mnli, []),
        ("is not fine-tuned; use a model fine-tuned on MNLI", pretrained, ["--from-mnli"]),
    ):
        with refused(message):
            finetune("RTE", start, 1e-9, *more)
    of_mnli, _ = encoder_and_heads(mnli)
    of_pretraining, _ = encoder_and_heads(pretrained)
    assert largest_difference(of_pretraining, of_mnli) > 1e-3
    for name, start in STARTS.items():
        # So small a learning rate that the encoder stays where it started.
        path = results / "MNLI/model" if start == "model" else mnli
        more = [] if start == "model" else ["--data-bin", tokenizer]
        content, kept = finetune(name, path, 1e-9, "--from-mnli", *more)
        encoder, heads = encoder_and_heads(kept)
        assert heads == {name}
        assert largest_difference(encoder, of_mnli) < 1e-6
        assert content["start"]["from"] == "a model fine-tuned on MNLI"
        assert content["start"]["updates"] == 6
        assert "a model fine-tuned on MNLI" in (results / name / "report.md").read_text()
        assert len((results / name / f"{name}.tsv").read_text().splitlines()) == 49
