"""Tiny randomly initialised networks to export."""

import io
from dataclasses import replace

import sentencepiece
import torch

from mae_lm_fairseq.core.autoencoder import MaskedAutoencoder
from mae_lm_fairseq.core.config import preset_config
from mae_lm_fairseq.core.heads import ClassificationHead
from mae_lm_fairseq.text.data_bin import TOKENIZER
from mae_lm_fairseq.text.sentencepiece_tokenizer import SentencePieceTokenizer
from mae_lm_fairseq.text.tokenizer import MASK, SPECIALS, Tokenizer
from mae_lm_fairseq.trained.info import ModelInfo
from mae_lm_fairseq.trained.reading import Pretrained
from tests.support.weights import with_head

TINY = {
    "encoder_layers": 2,
    "encoder_embed_dim": 16,
    "encoder_ffn_embed_dim": 32,
    "encoder_attention_heads": 4,
    "max_positions": 40,
    # Large enough that a wrong weight changes the hidden states visibly.
    "init_std": 0.3,
}
WITH_BIAS, WITHOUT_BIAS = {}, {"relative_buckets": 0}


def pretrained(
    preset="mae_lm",
    changes=None,
    model: bytes | None = None,
    symbols=None,
    heads=(),
    tokenizer: Tokenizer | None = None,
) -> Pretrained:
    """Return a randomly initialised network, with a 3-class classification head for each name in ``heads``."""
    config = preset_config(preset, "tiny", **TINY | (changes or {}))
    if model:
        tokenizer = SentencePieceTokenizer(TOKENIZER, model)
    ordinary = tokenizer.pieces if tokenizer else [f"w{i}" for i in range(45)]
    symbols = symbols or (*SPECIALS, *ordinary, MASK)
    torch.manual_seed(3)
    network = MaskedAutoencoder(config, len(symbols), 1, len(symbols) - 1)
    for name, weight in network.named_parameters():  # including biases and layer norms
        torch.nn.init.normal_(weight, mean=float("norm.weight" in name), std=config.init_std)
    weights = {f"autoencoder.{name}": weight for name, weight in network.state_dict().items()}
    finetuned = {}
    for name in heads:
        head = ClassificationHead(config.encoder_embed_dim, 3, config.encoder_embed_dim, 0.0, 0.3)
        finetuned |= with_head(weights, name, head)
    about = ModelInfo(architecture=f"{preset}_tiny", task="masked_autoencoder_lm", updates=7)
    return Pretrained(config, finetuned or weights, symbols, tokenizer, about)


def with_facts(model: Pretrained, **facts) -> Pretrained:
    """Return a model with other facts about its training."""
    return replace(model, about=replace(model.about, **facts))


def train_sentencepiece(lines, model_type="bpe", byte_fallback=False, vocab_size=450, **options) -> bytes:
    """Train a sentencepiece model and return its serialized bytes."""
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(lines),
        model_writer=model,
        model_type=model_type,
        byte_fallback=byte_fallback,
        vocab_size=vocab_size,
        num_threads=1,
        minloglevel=2,
        **options,
    )
    return model.getvalue()
