"""Tiny randomly initialised Hugging Face models, and model directories with a tokenizer."""

from collections.abc import Callable
from pathlib import Path

import torch

KINDS = ("bert", "roberta", "mpnet")
OPTIONS = {
    "albert": {"embedding_size": 8},
    "deberta-v2": {"relative_attention": True, "pos_att_type": ["p2c", "c2p"], "position_biased_input": False},
    "electra": {"embedding_size": 8},
    "modernbert": {"global_attn_every_n_layers": 2, "local_attention": 8, "bos_token_id": 0, "eos_token_id": 2},
    "roformer": {"embedding_size": 16},
}
"""Options of further types, beside those that all have."""


def tiny_model(kind: str, vocabulary: int, pad: int, layers: int = 2):
    """Return a randomly initialised model of hidden size 16, for up to 64 tokens, in evaluation mode."""
    from transformers import AutoModel

    return _build(AutoModel, kind, vocabulary, pad, layers)


def tiny_masked_lm(kind: str, vocabulary: int, pad: int, layers: int = 2):
    """Return such a model with its language model head."""
    from transformers import AutoModelForMaskedLM

    return _build(AutoModelForMaskedLM, kind, vocabulary, pad, layers)


def _build(auto, kind: str, vocabulary: int, pad: int, layers: int):
    from transformers import AutoConfig

    config = AutoConfig.for_model(
        kind,
        vocab_size=vocabulary,
        hidden_size=16,
        num_hidden_layers=layers,
        num_attention_heads=4,
        intermediate_size=32,
        max_position_embeddings=64 if kind == "bert" else 64 + pad + 1,
        pad_token_id=pad,
        initializer_range=0.2,
        **OPTIONS.get(kind, {}),
    )
    torch.manual_seed(0)
    return auto.from_config(config).eval()


def save_model(
    directory: Path, kind: str, words: list[str], build: Callable = tiny_model, template: bool = True
) -> Path:
    """Save the tiny model that ``build`` returns with a word-level tokenizer and return the directory.

    ``template`` puts ``[CLS]`` and ``[SEP]`` around a text.
    """
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    special = {"cls_token": "[CLS]", "pad_token": "[PAD]", "sep_token": "[SEP]", "unk_token": "[UNK]"}
    special["mask_token"] = "[MASK]"
    vocabulary = {token: number for number, token in enumerate([*special.values(), *words])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    sep, cls = ((token, vocabulary[token]) for token in ("[SEP]", "[CLS]"))
    if template:
        tokenizer.post_processor = processors.BertProcessing(sep, cls)
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, **special).save_pretrained(directory)
    build(kind, len(vocabulary), pad=1).save_pretrained(directory)
    return directory
