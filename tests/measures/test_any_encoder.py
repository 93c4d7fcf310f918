"""Measures of ``transformers`` directories: of families that are converted, and of types that are wrapped."""

import json

import pytest
import torch

from mae_lm_fairseq import cli
from mae_lm_fairseq.measures.readers import open_model
from mae_lm_fairseq.trained.masked_prediction import as_words
from tests.support.huggingface import save_model, tiny_masked_lm

WORDS = ["the", "dog", "sleeps", "fox", "jumps"]
TEXT = "the dog sleeps\nthe fox jumps the dog\n\nfox sleeps\ndog jumps the fox\n" * 8
KINDS = ("distilbert", "modernbert")


@pytest.fixture(scope="module", params=KINDS)
def directory(request, tmp_path_factory):
    return save_model(tmp_path_factory.mktemp("model") / request.param, request.param, WORDS, tiny_masked_lm)


def test_predictions_are_the_model_s(directory):
    """Float32 in batches of other shapes: 1e-5, as in the comparison at export."""
    from transformers import AutoModelForMaskedLM

    model, reader = AutoModelForMaskedLM.from_pretrained(directory).eval(), open_model(directory, None, with_head=True)
    words = as_words(reader.tokenizer, "the dog fox")
    assert words.words.tolist() == [-1, 0, 1, 2, -1]
    ids = torch.from_numpy(words.ids)[None].long()
    masked = ids.masked_fill(torch.tensor([[False, False, True, False, False]]), reader.predictor.mask)
    expected = model(torch.tensor([[0, 5, 4, 8, 2]])).logits[0, 2].detach()
    found = reader.predictor(masked, masked.eq(reader.predictor.mask))[0]
    torch.testing.assert_close(
        found[[0, 1, 2, 3, *range(4, 9), 9]], expected[[0, 1, 2, 3, *range(5, 10), 4]], rtol=1e-5, atol=1e-5
    )


def test_the_verbs_measure_it(tmp_path):
    """All use the states and the logits of the reader, as tested above for each type."""
    directory = save_model(tmp_path / "deberta-v2", "deberta-v2", WORDS, tiny_masked_lm)
    (tmp_path / "text").write_text(TEXT)
    rows = [f"1\t{word}\t_\t{tag}" + "\t_" * 6 + "\n\n" for word, tag in (("the", "DET"), ("dog", "NOUN"))]
    (tmp_path / "words").write_text("".join(rows * 20))
    files = ["--text", tmp_path / "text", "--tokens-per-sample", 16]
    run("rank", directory, *files, "--bootstrap", 10, "--out", tmp_path / "rank")
    bundle = tmp_path / "bundle" / directory.name
    bundle.parent.mkdir()
    run("import", directory, "--out", bundle)
    run("evaluate", directory, bundle, *files, "--out", tmp_path / "loss.json")
    run("probe", directory, "--train", tmp_path / "words", "--test", tmp_path / "words", "--out", tmp_path / "probe")
    [rank] = json.loads((tmp_path / "rank" / "ranks.json").read_text())["models"]
    assert {row["layer"] for row in rank["ranks"]} == {0, 1, 2}
    [probed] = json.loads((tmp_path / "probe" / "results.json").read_text())["models"].values()
    assert [row["accuracy"] for row in probed["layers"]] == [1.0, 1.0, 1.0]
    losses = json.loads((tmp_path / "loss.json").read_text())["models"]
    assert list(losses) == [f"{path.parent.name}/{path.name}" for path in (directory, bundle)]
    one, other = (losses[label] | {"model": ""} for label in losses)
    assert one == other  # both read the same tokens, with </s> at the end of lines


def run(verb, *arguments):
    cli.run(verb, list(map(str, arguments)))
