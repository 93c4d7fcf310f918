"""Pooling for sentence-transformers: files that an export writes or an import keeps, and the vectors."""

import json
import shutil

import pytest
import torch

from mae_lm_fairseq import MAELMModel
from mae_lm_fairseq.trained.bundle import write_bundle
from mae_lm_fairseq.trained.huggingface.importer import import_foreign, notes
from mae_lm_fairseq.utils.files import read_json, write_json
from tests.support.commands import run_verb
from tests.support.exports import WITHOUT_BIAS, pretrained
from tests.support.families import as_in_the_hubs_cache, put_behind_link
from tests.support.huggingface import save_model
from tests.support.refusals import refused

WORDS = ["the", "dog", "sleeps", "fox"]
KINDS = ("Transformer", "Pooling", "Normalize")
FILES = ("modules.json", "1_Pooling/config.json", "sentence_bert_config.json", "config_sentence_transformers.json")


@pytest.fixture
def released(tmp_path):
    """Return a directory of transformers with the files of sentence-transformers, as released models have them."""
    directory = save_model(tmp_path / "released", "bert", WORDS)
    (directory / "1_Pooling").mkdir()
    contents = (modules(*KINDS), {"word_embedding_dimension": 16, "pooling_mode_mean_tokens": True})
    for name, content in zip(FILES, (*contents, {"max_seq_length": 9}, {"prompts": {}}), strict=True):
        write_json(directory / name, content)
    return directory


def modules(*kinds: str, package="sentence_transformers.models") -> list[dict]:
    """Return the content of modules.json."""
    paths = ["", *(f"{number}_{kind}" for number, kind in enumerate(kinds[1:], 1))]
    listed = enumerate(zip(paths, kinds, strict=True))
    return [{"idx": n, "name": f"{n}", "path": path, "type": f"{package}.{kind}"} for n, (path, kind) in listed]


def export(directory, out, *options) -> dict[str, bytes]:
    """Import and export a model, and return the files of sentence-transformers."""
    write_bundle(import_foreign(directory, "mae_lm_roberta"), out / "bundle")
    run_verb("export", out / "bundle", "--out", out / "stock", *options)
    return {name: (out / "stock" / name).read_bytes() for name in FILES if (out / "stock" / name).exists()}


def test_an_import_keeps_its_pooling(released, tmp_path):
    assert export(released, tmp_path) == {name: (released / name).read_bytes() for name in FILES}


@pytest.mark.parametrize("pooling", ["mean", "cls"])
def test_the_user_may_choose_another_one(pooling, released, tmp_path, capsys):
    files = {name: json.loads(content) for name, content in export(released, tmp_path, "--pooling", pooling).items()}
    replaced = capsys.readouterr().out
    assert f"--pooling {pooling}: not exported are the imported model's " in replaced
    assert all(name in replaced for name in FILES)
    assert files["modules.json"] == modules(*KINDS[:2])
    assert files["1_Pooling/config.json"] == {
        "word_embedding_dimension": 16,
        "pooling_mode_cls_token": pooling == "cls",
        "pooling_mode_mean_tokens": pooling == "mean",
        "pooling_mode_max_tokens": False,
    }
    assert files["sentence_bert_config.json"]["max_seq_length"] == 64
    assert len(files) == 3


@pytest.mark.parametrize(
    ("listed", "lost"),
    [
        (modules(*KINDS, package="custom_st"), [" (custom_st.Transformer)", "1_Pooling", "2_Normalize"]),
        (modules("Transformer", package="custom_st") + modules(*KINDS)[1:], ["1_Pooling", "2_Normalize"]),
        (modules(*KINDS)[::2] + modules("Pooling"), ["2_Normalize", " (sentence_transformers.models.Pooling)"]),
        ([{**module, "path": f"../{module['path']}"} for module in modules(*KINDS)], ["../1_Pooling"]),
        ([{**module, "path": f"{module['path']}/.."} for module in modules(*KINDS)], ["1_Pooling/.."]),
    ],
)
def test_without_a_pooling_that_can_be_kept_nothing_is(listed, lost, released, tmp_path):
    """Weights or code of their own would be missing in the export."""
    write_json(released / "modules.json", listed)
    assert export(released, tmp_path) == {}
    named = "\n".join(notes(released))
    assert all(name in named for name in (*lost, *FILES[2:]))


def test_modules_that_are_not_kept_are_named_and_the_others_stay(released, tmp_path, capsys):
    listed = modules("Transformer", "Pooling", "Dense", "Normalize")
    write_json(released / "modules.json", listed)
    run_verb("import", released, "--out", tmp_path / "named")
    assert "2_Dense (sentence_transformers.models.Dense) is not imported" in capsys.readouterr().out
    files = export(released, tmp_path)
    assert json.loads(files.pop("modules.json")) == [listed[0], listed[1], listed[3]]
    assert files == {name: (released / name).read_bytes() for name in FILES[1:]}


def test_each_of_several_poolings_stays(released, tmp_path):
    listed = modules("Transformer", "Pooling", "Pooling", "Normalize")
    changed = {
        "modules.json": listed,
        "2_Pooling/config.json": {"word_embedding_dimension": 16, "pooling_mode_cls_token": True},
        "3_Normalize/config.json": {"module_input_name": "sentence_embedding"},
    }
    for name, content in changed.items():
        (released / name).parent.mkdir(exist_ok=True)
        write_json(released / name, content)
    export(released, tmp_path)
    for name in (*FILES, *changed):
        assert (tmp_path / "stock" / name).read_bytes() == (released / name).read_bytes()
    assert notes(released) == notes_of_pairs(released)
    library = pytest.importorskip("sentence_transformers", reason="sentence-transformers is not installed")
    texts = ["the dog", "fox", "the dog sleeps " * 40]
    before, after = (
        library.SentenceTransformer(str(path), device="cpu").encode(texts) for path in (released, tmp_path / "stock")
    )
    assert abs(before - after).max() < 1e-6


def notes_of_pairs(released) -> list[str]:
    """Return the notes on the same model without the files of sentence-transformers."""
    bare = released.parent / "bare"
    shutil.copytree(released, bare, ignore=shutil.ignore_patterns("*modules.json", "*sentence_*"))
    return notes(bare)


@pytest.mark.parametrize("kind", ["roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet"])
def test_older_names_of_the_length_stay(kind, released, tmp_path):
    name = f"sentence_{kind}_config.json"
    (released / "sentence_bert_config.json").rename(released / name)
    export(released, tmp_path)
    assert read_json(tmp_path / "stock" / name) == {"max_seq_length": 9}
    assert not (tmp_path / "stock/sentence_bert_config.json").exists()


def test_a_pooling_without_its_file_is_refused(released):
    (released / "1_Pooling/config.json").unlink()
    with refused(r"1_Pooling/config\.json"):
        import_foreign(released, "mae_lm_roberta")


def test_settings_that_lead_to_code_are_named(released):
    settings = {"max_seq_length": 9, "model_args": {"attn_implementation": "x"}, "tokenizer_args": {}}
    write_json(released / "sentence_bert_config.json", settings)
    named = "\n".join(notes(released))
    assert "sentence_bert_config.json: model_args is not imported" in named
    assert "tokenizer_args" not in named


def test_links_to_other_directories_are_refused(released, tmp_path):
    put_behind_link(released / "1_Pooling", tmp_path)
    with refused("1_Pooling is a link"):
        import_foreign(released, "mae_lm_roberta")


def test_the_hubs_cache_has_links(released):
    content = (released / FILES[1]).read_bytes()
    snapshot = as_in_the_hubs_cache(released)
    assert import_foreign(snapshot, "mae_lm_roberta").original.files[FILES[1]] == content


@pytest.mark.parametrize("kind", ["bert", "roberta"])
@pytest.mark.parametrize("pooling", ["mean", "cls"])
def test_vectors_are_those_of_this_package(kind, pooling, released, model, tmp_path):
    """Texts are cut at the model's length. Elements are about 1; float32 sums are in another order."""
    library = pytest.importorskip("sentence_transformers", reason="sentence-transformers is not installed")
    if kind == "bert":
        export(released, tmp_path, "--pooling", pooling)
    else:
        write_bundle(pretrained("mae_lm", WITHOUT_BIAS, model), tmp_path / "bundle")
        run_verb("export", tmp_path / "bundle", "--out", tmp_path / "stock", "--pooling", pooling)
    texts = ["the dog", "the fox sleeps the dog", "fox", "the dog sleeps " * 40]
    vectors = library.SentenceTransformer(str(tmp_path / "stock"), device="cpu").encode(texts, convert_to_tensor=True)
    states = MAELMModel.from_pretrained(tmp_path / "bundle").extract_features(texts, truncate=True)
    expected = torch.stack([of_text.mean(0) if pooling == "mean" else of_text[0] for of_text in states])
    torch.testing.assert_close(vectors, expected, rtol=1e-6, atol=1e-6)
