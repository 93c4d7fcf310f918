"""Every kind of path with every verb that takes a model: the verb opens the model, or says in one message why not."""

import shutil
from pathlib import Path

import pytest

from mae_lm_fairseq import cli
from mae_lm_fairseq.trained.averaging import average
from mae_lm_fairseq.trained.checkpoint_file import load_as_data, save_checkpoint
from mae_lm_fairseq.utils.errors import UserError
from tests.support.bundles import TEXT
from tests.support.commands import run_verb
from tests.support.families import stock_model
from tests.support.huggingface import save_model, tiny_masked_lm
from tests.trained.huggingface.test_importer import fairseq_roberta

CHECKPOINTS = ("checkpoint", "checkpoint with EMA", "averaged checkpoint")
WITH_HEAD = ("bundle", "RoBERTa of transformers", "wrapped type")
DIRECTORIES = (*WITH_HEAD, "export")
OTHERS = ("RoBERTa of fairseq", "half-written checkpoint", "directory of checkpoints", "text file", "nothing")
WORK = {
    "evaluate": ("measures.evaluation", "Options.compare"),
    "rank": ("measures.rank", "Options.compare"),
    "probe": ("measures.probe", "Options.compare"),
    "minimal-pairs": ("measures.minimal_pairs", "Options.compare"),
    "retrieval": ("measures.retrieval", "Options.compare"),
    "export": ("commands.export", "export_stock"),
    "bundle": ("commands.bundle", "write_bundle"),
    "import": ("commands.import_", "write_bundle"),
    "average": ("commands.average", "save_checkpoint"),
    "adapt": ("study.adapt", "as_objective"),
    "finetune tagging": ("finetuning.driver", "Sweep"),
    "predict": ("trained.tags", "read_words"),
}
"""The function that each verb calls once it has its model; it is replaced, so that the test ends there."""
OPENED = {
    **dict.fromkeys(("evaluate", "minimal-pairs"), (*CHECKPOINTS, *WITH_HEAD)),
    **dict.fromkeys(("rank", "probe", "retrieval"), (*CHECKPOINTS, *DIRECTORIES)),
    "export": (*CHECKPOINTS, *DIRECTORIES),
    "adapt": (*CHECKPOINTS, *DIRECTORIES),
    "bundle": CHECKPOINTS,
    "import": ("export", "RoBERTa of transformers", "wrapped type", "RoBERTa of fairseq"),
    "average": CHECKPOINTS,
    "finetune tagging": (*CHECKPOINTS, "bundle"),
    "predict": (),
}
"""The paths that each verb takes. None of them is a fine-tuned model, which predict needs."""


class OpenedError(Exception):
    """The verb has its model."""


def stop(*arguments, **options):
    raise OpenedError


@pytest.fixture(scope="module")
def paths(tmp_path_factory, checkpoints, bundles) -> dict[str, Path]:
    """Write one of each kind of path."""
    directory = tmp_path_factory.mktemp("paths")
    places = {kind: directory / kind.replace(" ", "-") for kind in (*CHECKPOINTS, *DIRECTORIES, *OTHERS)}
    checkpoint = checkpoints["mae_lm_tiny"]
    shutil.copy(checkpoint, places["checkpoint"])
    state = load_as_data(checkpoint)
    state["extra_state"]["ema"] = dict(state["model"])
    save_checkpoint(state, places["checkpoint with EMA"])
    save_checkpoint(average([checkpoint, checkpoint]), places["averaged checkpoint"])
    shutil.copytree(bundles["mae_lm_tiny"], places["bundle"])
    run_verb("export", bundles["mae_lm_tiny"], "--out", places["export"])
    stock_model(places["RoBERTa of transformers"], "roberta")
    save_model(places["wrapped type"], "electra", list("abcdefgh"), tiny_masked_lm)
    fairseq_roberta(directory / "roberta")
    places["RoBERTa of fairseq"] = directory / "roberta/model.pt"
    content = checkpoint.read_bytes()
    places["half-written checkpoint"].write_bytes(content[: len(content) // 2])
    places["directory of checkpoints"].mkdir()
    shutil.copy(checkpoint, places["directory of checkpoints"] / "checkpoint_last.pt")
    places["text file"].write_text("\n".join(TEXT), encoding="utf-8")
    return places


@pytest.fixture
def inputs(tmp_path, monkeypatch) -> dict[str, list[str]]:
    """Write what the verbs read besides the model, and return their words."""
    monkeypatch.chdir(tmp_path)
    Path("text").write_text("\n".join(TEXT), encoding="utf-8")
    Path("pairs").mkdir()
    Path("pairs/zorro.txt").write_text("the dog sleep\nthe dog sleeps\n")
    rows = (["1", "the", "_", "DET", *"______"], ["2", "dog", "_", "NOUN", *"______"])
    Path("words.conllu").write_text("\n".join(map("\t".join, rows)) + "\n\n")
    Path("questions.tsv").write_text("_id\ttext\tcorpus-id\n1\tthe dog\t1\n")
    out = ["--out", "out"]
    tagged = ["--train", "words.conllu", "--dev", "words.conllu", "--column", "UPOS"]
    return {
        "evaluate": ["--text", "text", "--tokens-per-sample", "30"],
        "rank": ["--text", "text", "--tokens-per-sample", "30", *out],
        "probe": ["--train", "words.conllu", "--test", "words.conllu", "--column", "UPOS", *out],
        "minimal-pairs": ["--pairs", "pairs", *out],
        "retrieval": ["--questions", "questions.tsv", "--passages", "questions.tsv", *out],
        "export": out,
        "bundle": out,
        "import": out,
        "average": out,
        "adapt": ["--train", "text", "--valid", "words.conllu", *out],
        "finetune tagging": [*tagged, *out],
        "predict": ["--input", "words.conllu", *out],
    }


@pytest.mark.parametrize("kind", [*CHECKPOINTS, *DIRECTORIES, *OTHERS])
@pytest.mark.parametrize("verb", WORK)
def test_a_verb_opens_a_model_or_says_in_one_message_why_not(verb, kind, paths, inputs, text_data, monkeypatch, capsys):
    module, name = WORK[verb]
    monkeypatch.setattr(f"mae_lm_fairseq.{module}.{name}", stop)
    path = paths[kind]
    needs_data_bin = verb == "bundle" or (path.is_file() and verb not in ("average", "import"))
    data_bin = ["--data-bin", str(text_data)] if needs_data_bin else []
    words = [str(path), *([str(path)] if verb == "average" else []), *data_bin, *inputs[verb]]
    with pytest.raises((OpenedError, UserError)) as raised:
        cli.run(verb, words)
    assert isinstance(raised.value, OpenedError) == (kind in OPENED[verb]), raised.value
    if kind not in OPENED[verb]:
        assert path.name in str(raised.value)
        assert "\n" not in str(raised.value)
