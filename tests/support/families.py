"""Tiny randomly initialised models of every family that can be imported, with tokenizers trained here."""

import json
import random
from pathlib import Path

import tokenizers
import torch
import transformers
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors, trainers

from mae_lm_fairseq.trained.huggingface.families import FAMILIES
from tests.support.tokenizers import paragraphs

BERT_SPECIALS = {"cls": "[CLS]", "pad": "[PAD]", "sep": "[SEP]", "unk": "[UNK]", "mask": "[MASK]"}
ROBERTA_SPECIALS = {"cls": "<s>", "pad": "<pad>", "sep": "</s>", "unk": "<unk>", "mask": "<mask>"}
VOCABULARIES = {
    "bert": ["[PAD]", "[unused0]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"],
    "roberta": ["<s>", "<pad>", "</s>", "<unk>"],
    "roberta-prelayernorm": ["<s>", "<pad>", "</s>", "<unk>"],
    "xlm-roberta": ["<s>", "<pad>", "</s>", "<unk>"],
    # As in camembert-base, the first ids are of tokens that no text has.
    "camembert": ["<s>NOTUSED", "<pad>", "</s>NOTUSED", "<unk>", "<unk>NOTUSED", "<s>", "</s>"],
    "mpnet": ["<s>", "<pad>", "</s>", "<unk>", "[unused0]", "[UNK]"],
    "distilbert": ["[PAD]", "[unused0]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"],
}
"""First tokens of each family's vocabulary. Where it is not among them, ``<mask>`` is the last."""


def train(kind: str) -> tokenizers.Tokenizer:
    """Return a tokenizer like those of a family."""
    lines, specials = paragraphs(300), VOCABULARIES[kind]
    options = {"show_progress": False, "vocab_size": 140}
    if kind in ("bert", "distilbert", "mpnet"):
        tokenizer = tokenizers.Tokenizer(models.WordPiece(unk_token="[UNK]"))
        tokenizer.normalizer = normalizers.BertNormalizer()
        tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        tokenizer.decoder = decoders.WordPiece()
        trainer = trainers.WordPieceTrainer(special_tokens=specials, **options)
    elif kind in ("roberta", "roberta-prelayernorm"):
        tokenizer = tokenizers.Tokenizer(models.BPE())
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        tokenizer.decoder = decoders.ByteLevel()
        alphabet = pre_tokenizers.ByteLevel.alphabet()
        trainer = trainers.BpeTrainer(special_tokens=specials, initial_alphabet=alphabet, show_progress=False,
                                      vocab_size=300)  # fmt: skip
    else:
        tokenizer = tokenizers.Tokenizer(models.Unigram())
        tokenizer.normalizer = normalizers.NFKC()
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
        tokenizer.decoder = decoders.Metaspace()
        trainer = trainers.UnigramTrainer(special_tokens=specials, unk_token="<unk>", **options)
    tokenizer.train_from_iterator(lines, trainer)
    names = BERT_SPECIALS if kind in ("bert", "distilbert") else ROBERTA_SPECIALS
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
    names = BERT_SPECIALS if kind in ("bert", "distilbert") else ROBERTA_SPECIALS
    names = {f"{role}_token": name for role, name in names.items()}
    if kind == "mpnet":
        names["unk_token"] = "[UNK]"
    if "<s>" in names.values():
        names |= {"bos_token": "<s>", "eos_token": "</s>"}
    if kind == "bert":
        names["model_input_names"] = ["input_ids", "token_type_ids", "attention_mask"]
    transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, **names).save_pretrained(directory)
    return tokenizer


def stock_model(directory: Path, kind: str, task: str = "ForMaskedLM", **changes):
    """Save a model of a family, with its tokenizer, and return it in evaluation mode.

    Every weight differs from its initial value, biases and layer norms included.
    """
    tokenizer = save_tokenizer(directory, kind)
    names = BERT_SPECIALS if kind in ("bert", "distilbert") else ROBERTA_SPECIALS
    ids = {f"{role}_token_id": tokenizer.token_to_id(names[name]) for role, name in
           (("pad", "pad"), ("bos", "cls"), ("eos", "sep"))}  # fmt: skip
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


def change_config(directory: Path, **changes) -> None:
    """Change values of ``config.json``."""
    path = directory / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_bytes()), **changes}))
