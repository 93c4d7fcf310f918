"""From raw text to an exported model with tokenizers of every kind."""

import pytest
import torch
from fairseq_cli import preprocess
from transformers import AutoTokenizer

from mae_lm_fairseq import MAELMModel
from mae_lm_fairseq.finetuning import sweep
from mae_lm_fairseq.finetuning.driver import finetune
from mae_lm_fairseq.finetuning.options import GlueOptions, SquadOptions
from mae_lm_fairseq.finetuning.sentences.tasks import TASKS
from mae_lm_fairseq.measures.readers import open_model
from mae_lm_fairseq.text.data_bin import check_data_bin
from mae_lm_fairseq.text.tokenizer_files import open_tokenizer
from mae_lm_fairseq.utils.files import read_json
from tests.support.answering import write_squad
from tests.support.commands import run_verb
from tests.support.finetuning import run_here, train_here
from tests.support.glue import make_rows, write_official
from tests.support.refusals import refused
from tests.support.tokenizers import GIVEN_KINDS, SIZES, TRAINED_KINDS, fairseq_files, make, paragraphs, write
from tests.support.training import RECIPE

SLOW = [pytest.param(kind, marks=pytest.mark.slow) for kind in (*TRAINED_KINDS, *GIVEN_KINDS) if kind != "byte-bpe"]
# MPNet of transformers takes id 1 for padding.
OPTIONS = {kind: ["--relative-buckets", 0, "--decoder-relative-buckets", 0] for kind in ("gpt2", "unigram")}


@pytest.fixture(scope="module")
def texts(tmp_path_factory):
    """Write the texts of both splits, and return the arguments that name them."""
    directory = tmp_path_factory.mktemp("texts")
    for split, count in (("train", 300), ("valid", 40)):
        lines = paragraphs(count, seed=len(split))
        lines[::5] = [""] * len(lines[::5])
        (directory / f"{split}.txt").write_text("\n".join([*lines, ""]), encoding="utf-8")
    return [argument for split in ("train", "valid") for argument in (f"--{split}", directory / f"{split}.txt")]


def prepared(texts, destdir, *options):
    """Run ``mae-lm prepare`` and return the data-bin."""
    arguments = [*texts, "--destdir", destdir, "--workers", 1, "--max-unk-rate", 1, *options]
    run_verb("prepare", *arguments)
    return destdir


def from_pretraining_to_export(data, directory, monkeypatch, *options):
    """Pretrain, fine-tune on GLUE and SQuAD, load, bundle and export; return the checkpoint."""
    monkeypatch.setattr(sweep, "run_all", run_here)
    checkpoint = directory / "checkpoints/checkpoint_last.pt"
    network = ["--arch", "mae_lm_tiny", *options]
    train_here(data, *RECIPE, *network, "--mask-whole-words", "--save-dir", checkpoint.parent, "--max-update", 3,
               "--no-epoch-checkpoints", "--num-workers", 0)  # fmt: skip
    tuning = {"model": checkpoint, "data_bin": data, "seeds": 1, "max_updates": 2, "learning_rates": [1e-3]}
    glue_dir = write_official(directory / "glue", TASKS["RTE"], make_rows(TASKS["RTE"]))
    finetune(GlueOptions(task="RTE", glue_dir=glue_dir, out=directory / "rte", **tuning))
    questions = write_squad(directory / "squad.json", people=3)
    del tuning["max_updates"]
    finetune(SquadOptions(train=questions, dev=questions, out=directory / "squad", tokens_per_sample=64,
                                extra=("--max-update", "2"), **tuning))  # fmt: skip
    contexts = [paragraph["context"] for article in read_json(questions)["data"]
                for paragraph in article["paragraphs"]]  # fmt: skip
    answers = read_json(directory / "squad/predictions.json")
    assert all(any(answer in context for context in contexts) for answer in answers.values())
    for number, tuned in enumerate([checkpoint, *directory.glob("*/runs/*/checkpoints/*.pt")]):
        run_verb("export", tuned, "--data-bin", data, "--out", directory / f"exported{number}")
    run_verb("bundle", checkpoint, "--data-bin", data, "--out", directory / "bundle")
    return checkpoint


def assert_usable(data, directory, checkpoint):
    """Check the hub interface from checkpoint and bundle, ranks, and the exported tokenizer."""
    hubs = [MAELMModel.from_pretrained(checkpoint, data_bin=data), MAELMModel.from_pretrained(directory / "bundle")]
    text = "the tokenizer is <mask> that"
    ids = hubs[0].encode(text)
    assert hubs[0].decode(ids).replace("<mask>", "").split() == ["the", "tokenizer", "is", "that"]
    assert all(torch.equal(hub.encode(text), ids) for hub in hubs)
    first, second = ([(filling.text, filling.token) for filling in hub.fill_mask(text)] for hub in hubs)
    assert first == second
    [tuned] = directory.glob("rte/runs/*/checkpoints/*.pt")
    classifier = MAELMModel.from_pretrained(tuned, data_bin=directory / "rte/data-bin")
    assert classifier.predict("RTE", [classifier.encode("the of", "is not")]).shape == (1, 2)
    assert hubs[0].score("the tokenizer is that", mask_words=True).isfinite().all()
    tokenizer = open_tokenizer(data)
    assert open_model(checkpoint, data).encode("the of")[0].tolist() == tokenizer.encode_lines(["the of"])[0].tolist()
    fast = AutoTokenizer.from_pretrained(directory / "exported0")
    for line in paragraphs(50, seed=9):
        [ours] = tokenizer.encode_lines([line])
        assert fast(line, add_special_tokens=False)["input_ids"] == tokenizer.exported_ids[ours].tolist()


@pytest.mark.parametrize("kind", ["byte-bpe", *SLOW])
def test_from_text_to_export(kind, texts, tmp_path, monkeypatch):
    if kind in TRAINED_KINDS:
        data = prepared(texts, tmp_path / "data-bin", "--tokenizer", kind, "--vocab-size", SIZES[kind])
    else:
        data = prepared(texts, tmp_path / "data-bin", "--tokenizer", write(tmp_path / "given", kind))
    lines = (texts[1]).read_text(encoding="utf-8").splitlines()
    tokenizer = open_tokenizer(data)
    assert check_data_bin(data / "train") == (len(lines), sum(len(ids) + 1 for ids in tokenizer.encode_lines(lines)))
    checkpoint = from_pretraining_to_export(data, tmp_path, monkeypatch, *OPTIONS.get(kind, ()))
    assert_usable(data, tmp_path, checkpoint)


@pytest.mark.slow
def test_a_data_bin_of_fairseqs_recipe_for_roberta(texts, tmp_path, monkeypatch):
    """Encode with fairseq's GPT-2 encoder and binarise with fairseq-preprocess, as fairseq's README does."""
    from fairseq.data.encoders.gpt2_bpe_utils import get_encoder

    files, data = fairseq_files(paragraphs(300), 300), tmp_path / "data-bin"
    for name, content in zip(("encoder.json", "vocab.bpe", "dict.txt"), files, strict=True):
        (tmp_path / name).write_bytes(content)
    encoder = get_encoder(str(tmp_path / "encoder.json"), str(tmp_path / "vocab.bpe"))
    for name, path in zip(("train", "valid"), texts[1::2], strict=True):
        lines = path.read_text(encoding="utf-8").splitlines()
        encoded = "".join(" ".join(map(str, encoder.encode(line))) + "\n" for line in lines)
        (tmp_path / f"{name}.bpe").write_text(encoded)
    splits = ["--trainpref", tmp_path / "train.bpe", "--validpref", tmp_path / "valid.bpe"]
    words = ["--only-source", "--srcdict", tmp_path / "dict.txt", *splits, "--destdir", data, "--workers", 1]
    preprocess.main(preprocess.options.get_preprocessing_parser().parse_args([str(word) for word in words]))
    for name in ("encoder.json", "vocab.bpe"):
        (tmp_path / name).rename(data / name)
    checkpoint = from_pretraining_to_export(data, tmp_path, monkeypatch)
    assert_usable(data, tmp_path, checkpoint)
    # Our own preparation writes the same tokens.
    ours = prepared(texts, tmp_path / "ours", "--tokenizer", data)
    for name in ("train.bin", "valid.idx"):
        assert (ours / name).read_bytes() == (data / name).read_bytes()


def test_a_tokenizer_that_does_not_belong_to_the_data_bin_is_refused(texts, tmp_path):
    data = prepared(texts, tmp_path / "data-bin", "--tokenizer", "byte-bpe", "--vocab-size", 320)
    make("gpt2").save(data)
    with refused(r"tokenizer\.json, dict\.txt and manifest\.json"):
        open_tokenizer(data)
    training = [data, *RECIPE, "--mask-whole-words", "--arch", "mae_lm_tiny", "--save-dir", tmp_path / "checkpoints"]
    with refused(r"--mask-whole-words: .*tokenizer\.json .*dict\.txt"):
        train_here(*training, "--max-update", 1, "--num-workers", 0)
