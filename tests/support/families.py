"""Tiny randomly initialised models of every family that can be imported, with tokenizers trained here."""

import functools
import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import tokenizers
import torch
import transformers
from safetensors.torch import load_file, save_file
from tokenizers import processors

from mae_lm_fairseq.trained.bundle import write_bundle
from mae_lm_fairseq.trained.huggingface.comparison import encoder_states
from mae_lm_fairseq.trained.huggingface.exporter import export_stock
from mae_lm_fairseq.trained.huggingface.families import FAMILIES
from mae_lm_fairseq.trained.huggingface.importer import import_foreign
from mae_lm_fairseq.trained.huggingface.model_card import add_tokenizer_and_card
from mae_lm_fairseq.trained.opening import open_pretrained
from mae_lm_fairseq.trained.reading import Pretrained, build
from mae_lm_fairseq.utils.files import read_json
from tests.support.comparisons import assert_close
from tests.support.tokenizers import paragraphs, trained

BERT_SPECIALS = {"cls": "[CLS]", "pad": "[PAD]", "sep": "[SEP]", "unk": "[UNK]", "mask": "[MASK]"}
ROBERTA_SPECIALS = {"cls": "<s>", "pad": "<pad>", "sep": "</s>", "unk": "<unk>", "mask": "<mask>"}
_BERT = ["[PAD]", "[unused0]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
_ROBERTA = ["<s>", "<pad>", "</s>", "<unk>"]
VOCABULARIES = {
    **dict.fromkeys(("bert", "distilbert"), _BERT),
    **dict.fromkeys(("roberta", "roberta-prelayernorm", "xlm-roberta"), _ROBERTA),
    # As in camembert-base, the first ids are of tokens that no text has.
    "camembert": ["<s>NOTUSED", "<pad>", "</s>NOTUSED", "<unk>", "<unk>NOTUSED", "<s>", "</s>"],
    "mpnet": [*_ROBERTA, "[unused0]", "[UNK]"],
}
"""First tokens of each family's vocabulary. Where it is not among them, ``<mask>`` is the last."""


def specials_of(kind: str) -> dict[str, str]:
    """Return the special tokens of a family by role."""
    return BERT_SPECIALS if kind in ("bert", "distilbert") else ROBERTA_SPECIALS


def train(kind: str) -> tokenizers.Tokenizer:
    """Return a tokenizer like those of a family."""
    specials = VOCABULARIES[kind]
    if kind in ("bert", "distilbert", "mpnet"):
        tokenizer = trained("wordpiece", specials, 140)
    elif kind in ("roberta", "roberta-prelayernorm"):
        tokenizer = trained("byte-level BPE", specials, 300)
    else:
        tokenizer = trained("unigram", specials, 140)
    names = specials_of(kind)
    mask = names["mask"]
    tokenizer.add_special_tokens([tokenizers.AddedToken(mask, lstrip=mask == "<mask>", special=True, normalized=False)])
    cls, sep = ((names[name], tokenizer.token_to_id(names[name])) for name in ("cls", "sep"))
    second = f"$B:1 {sep[0]}:1" if kind in ("bert", "distilbert") else f"{sep[0]} $B {sep[0]}"
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{cls[0]} $A {sep[0]}", pair=f"{cls[0]} $A {sep[0]} {second}", special_tokens=[cls, sep]
    )
    return tokenizer


def save_tokenizer(directory: Path, kind: str) -> tokenizers.Tokenizer:
    """Save such a tokenizer for ``AutoTokenizer``."""
    tokenizer = train(kind)
    names = {f"{role}_token": name for role, name in specials_of(kind).items()}
    if kind == "mpnet":
        names["unk_token"] = "[UNK]"
    if "<s>" in names.values():
        names |= {"bos_token": "<s>", "eos_token": "</s>"}
    if kind == "bert":
        names["model_input_names"] = ["input_ids", "token_type_ids", "attention_mask"]
    transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, **names).save_pretrained(directory)
    return tokenizer


@pytest.fixture(scope="session")
def stock(tmp_path_factory) -> Callable[..., Path]:
    """Return ``stock(kind, task, **changes)``, which saves a model once in a session and returns its directory.

    The arguments are those of ``stock_model``. Tests that change a model copy it.
    """

    @functools.cache
    def saved(kind: str, task: str = "ForMaskedLM", **changes) -> Path:
        directory = tmp_path_factory.mktemp("stock") / kind
        stock_model(directory, kind, task, **changes)
        return directory

    return saved


@pytest.fixture
def copy_of(stock, tmp_path) -> Callable[..., Path]:
    """Return a function that copies a model of ``stock``, for tests that change it, and returns the directory."""
    return lambda *kind, **changes: shutil.copytree(stock(*kind, **changes), tmp_path / "stock")


@pytest.fixture(scope="session")
def imported(tmp_path_factory, stock) -> Callable[..., Path]:
    """Return ``imported(kind, preset)``, which imports a masked language model once in a session, as a bundle."""

    @functools.cache
    def bundle(kind: str, preset: str = "mae_lm_roberta") -> Path:
        directory = tmp_path_factory.mktemp("imported") / kind
        write_bundle(import_foreign(stock(kind), preset), directory, add_tokenizer_and_card)
        return directory

    return bundle


def load_stock(directory: Path):
    """Return the model in a directory, in evaluation mode."""
    [architecture] = transformers.AutoConfig.from_pretrained(directory).architectures
    return getattr(transformers, architecture).from_pretrained(directory).eval()


def stock_logits(directory: Path, *texts) -> torch.Tensor:
    """Return the logits that transformers computes by the model and tokenizer in a directory."""
    return _stock_output(load_stock(directory), directory, texts).logits


def stock_states(directory: Path, *texts) -> torch.Tensor:
    """Return the hidden states that transformers computes by the encoder and tokenizer in a directory."""
    encoder = transformers.AutoModel.from_pretrained(directory).eval()
    return _stock_output(encoder, directory, texts).last_hidden_state


@torch.no_grad()
def _stock_output(model, directory: Path, texts: tuple):
    tokenizer = transformers.AutoTokenizer.from_pretrained(directory)
    return model(**tokenizer(*texts, padding=True, return_tensors="pt"))


def check_outputs(directory: Path, model: Pretrained) -> None:
    """Compare the hidden states of a model in a directory, and its logits for masks if it has any, with ours."""
    order = torch.from_numpy(model.tokenizer.exported_ids)
    ids = [torch.tensor([0, *row[:30].tolist(), 2]) for row in model.tokenizer.encode_lines(lines(8, seed=2))]
    tokens = torch.nn.utils.rnn.pad_sequence(ids, batch_first=True, padding_value=1)
    stock = load_stock(directory)
    fills_masks = type(stock).__name__.endswith("ForMaskedLM")
    if fills_masks:
        tokens[0, 3] = model.mask
    is_token = tokens.ne(1)
    network = build(model)
    with torch.no_grad():
        theirs = stock(order[tokens], attention_mask=is_token.long(), output_hidden_states=True)
        ours = encoder_states(network, tokens, 1)
    for their, our in zip(theirs.hidden_states, ours, strict=True):
        assert_close(our[is_token], their[is_token], 1e-5)
    if fills_masks:
        logits = network.lm_head(ours[-1][is_token]).detach()
        torch.testing.assert_close(logits, theirs.logits[..., order][is_token], rtol=1e-5, atol=2e-5)


def round_trip(source: Path, out: Path) -> str:
    """Import a model, write its bundle and export that, and return the name of the class."""
    write_bundle(import_foreign(source, "mae_lm_roberta"), out / "bundle", add_tokenizer_and_card)
    return export_stock(open_pretrained(out / "bundle"), out / "exported")


def stock_model(directory: Path, kind: str, task: str = "ForMaskedLM", labels: tuple[str, ...] = (), **changes):
    """Save a model of a family, with its tokenizer, and return it in evaluation mode.

    Every weight differs from its initial value, biases and layer norms included. ``labels`` names its classes.
    """
    if labels:
        changes |= {"id2label": dict(enumerate(labels)), "label2id": {name: n for n, name in enumerate(labels)}}
    tokenizer = save_tokenizer(directory, kind)
    names, roles = specials_of(kind), {"pad": "pad", "bos": "cls", "eos": "sep"}
    ids = {f"{role}_token_id": tokenizer.token_to_id(names[name]) for role, name in roles.items()}
    options = ("hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size")
    options = ("dim", "n_layers", "n_heads", "hidden_dim") if kind == "distilbert" else options
    positions = 40 + FAMILIES[kind].first_position(ids["pad_token_id"])
    values = dict(zip(options, (16, 2, 4, 32), strict=True)) | {
        "vocab_size": tokenizer.get_vocab_size(),
        "max_position_embeddings": positions,
        "initializer_range": 0.3,
        **ids,
        **changes,
    }
    config = transformers.AutoConfig.for_model(kind, **values)
    torch.manual_seed(0)
    model = getattr(transformers, FAMILIES[kind].classes + task)(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    model.save_pretrained(directory)
    return model


def lines(count: int, seed: int = 0) -> list[str]:
    """Return lines that the tokenizers know in part: words, unknown characters, cases, spaces."""
    generator = random.Random(seed)
    odd = ("Ünïcode", "東京", "☕", "  two  spaces ", "UPPER", "1,234.5", "don't", "e\u0301", "x" * 30, "(a)", "ﬁ")
    texts = paragraphs(count, seed)
    return [f"{text} {generator.choice(odd)}" if generator.random() < 0.5 else text for text in texts]


def change_json(path: Path, **changes) -> None:
    """Change values of a file of JSON, which may not exist yet."""
    before = read_json(path) if path.exists() else {}
    path.write_text(json.dumps(before | changes))


def put_behind_link(path: Path, elsewhere: Path) -> None:
    """Move a file or directory into another one, and leave a link to it."""
    path.rename(elsewhere / path.name)
    path.symlink_to(elsewhere / path.name)


def as_in_the_hubs_cache(directory: Path) -> Path:
    """Move a model into a cache of the Hugging Face hub, where all files are links to blobs; return its directory."""
    snapshot, blobs = directory.parent / "hub/snapshots/abc", directory.parent / "hub/blobs"
    snapshot.parent.mkdir(parents=True)
    blobs.mkdir()
    directory.rename(snapshot)
    for path in [path for path in snapshot.rglob("*") if path.is_file()]:
        blob = blobs / str(path.relative_to(snapshot)).replace("/", "-")
        path.rename(blob)
        path.symlink_to(blob)
    return snapshot


def change_weights(directory: Path, change: Callable[[dict], dict]) -> None:
    """Replace the weights of a model by those that a function returns."""
    path = directory / "model.safetensors"
    save_file(change(load_file(path)), path, metadata={"format": "pt"})
