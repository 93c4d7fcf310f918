"""Evaluation of a trained masked language model: validation loss, rank of hidden states, and a cloze sentence."""

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from fairseq import checkpoint_utils, utils
from torch import Tensor

from mae_lm_fairseq.core.packing import restore
from mae_lm_fairseq.criterions.masked_autoencoder_lm import MaskedAutoencoderLMCriterion
from mae_lm_fairseq.statistics.effective_rank import SecondMoments, ranks
from mae_lm_fairseq.text.offsets import encode_with_spans
from mae_lm_fairseq.text.tokenizer import MASK, Tokenizer

LONG_WORD = re.compile(r" [^\W\d_]{4,}")
LONGEST = 40
BATCH = 32


@dataclass(frozen=True)
class Gap:
    """A sentence with one ``<mask>``, and the original word if the sentence comes from a text."""

    sentence: str
    true_word: str | None = None


def load(checkpoint: Path, data: Path, **task_options) -> tuple[torch.nn.Module, object]:
    """Load a trained model in evaluation mode, and its task with the validation split.

    Args:
        checkpoint: a fairseq checkpoint.
        data: the data-bin.
        task_options: task options that replace those of the training, such as ``mask_prob``.
    """
    models, _, task = checkpoint_utils.load_model_ensemble_and_task(
        [str(checkpoint)], arg_overrides={"data": str(data), **task_options}
    )
    task.load_dataset("valid")
    return models[0].eval(), task


def _batches(task, size: int = BATCH) -> Iterator[dict]:
    """Yield batches of the validation split, in its order."""
    dataset = task.dataset("valid")
    for start in range(0, len(dataset), size):
        yield dataset.collater([dataset[index] for index in range(start, min(start + size, len(dataset)))])


def clean_batches(task) -> Iterator[Tensor]:
    """Yield the validation split in batches of ids ``[B, T]``, with the original tokens at masked positions."""
    pad = task.source_dictionary.pad()
    for batch in _batches(task):
        yield torch.where(batch["target"].ne(pad), batch["target"], batch["net_input"]["src_tokens"])


@torch.no_grad()
def masked_loss(model: torch.nn.Module, task) -> float:
    """Return the cross-entropy in nats per masked token of the validation split, computed on a GPU if available.

    Which tokens are masked depends on the task's options and seed, not on the model. For a model that expands
    ``<mask>`` tokens, whose training loss is that of all targets together, each target is predicted on its own.
    """
    states = model.autoencoder.config.mask_states
    criterion, batches = MaskedAutoencoderLMCriterion(task), _batches(task, max(1, BATCH // states**2))
    if torch.cuda.is_available():
        model, batches = model.cuda(), map(utils.move_to_cuda, batches)
    loss_of = criterion if states == 1 else _marginal_loss  # which holds the logits of all states
    losses, predicted, *_ = zip(*(loss_of(model, batch) for batch in batches), strict=True)
    return float(sum(losses)) / sum(predicted)


def _marginal_loss(model: torch.nn.Module, batch: dict) -> tuple[Tensor, int]:
    """Return the summed cross-entropy at the predicted positions, and their number."""
    layout = restore(batch["layout"])
    targets = batch["target"].flatten().index_select(0, layout.predicted.index)
    logits, _ = model(**batch["net_input"], layout=layout)
    return F.cross_entropy(logits.float(), targets, reduction="sum"), len(targets)


@torch.no_grad()
def encoder_rank(model: torch.nn.Module, batches: Iterable[Tensor], pad: int, tokens: int = 10_000) -> tuple[int, int]:
    """Return the effective rank of the last encoder layer's states for about ``tokens`` tokens, and the hidden size."""
    moments = None
    for batch in batches:
        _, extra = model.extract_features(batch, return_all_hiddens=True)
        states = extra["inner_states"][-1][batch.ne(pad)]
        moments = moments or SecondMoments(states.size(1))
        moments.add(states)
        if moments.count >= tokens:
            break
    return int(ranks(moments.energies())["threshold"]), states.size(1)


def find_gap(text: Path, tokenizer: Tokenizer) -> Gap:
    """Return a sentence of a text with one common word replaced by ``<mask>``.

    The word is the first one with at least four letters that is among the 200 most frequent, a single subword of the
    vocabulary, and not at an end of its sentence. In text without spaces between words, it is the middle subword of the
    longest sentence.
    """
    lines = text.read_text(encoding="utf-8").splitlines()
    sentences = [part for line in lines for part in re.split(r"(?<=[.!?]) ", line)]
    encoded = [ids[:LONGEST].tolist() for ids in tokenizer.encode_lines(sentences)]
    used = {index for ids in encoded for index in ids}
    texts = {index: tokenizer.token_text(index) for index in used}
    words = Counter(index for ids in encoded for index in ids if LONG_WORD.fullmatch(texts[index]))
    common = {word for word, _ in words.most_common(200)}
    for sentence, ids in zip(sentences, encoded, strict=True):
        for place in range(4, len(ids) - 3):
            if ids[place] in common and texts[ids[place + 1]].startswith(" "):
                return _gap_at(sentence, place, tokenizer)
    longest = max(range(len(sentences)), key=lambda number: len(encoded[number]))
    return _gap_at(sentences[longest], len(encoded[longest]) // 2, tokenizer)


def _gap_at(sentence: str, place: int, tokenizer: Tokenizer) -> Gap:
    """Return the sentence without the token at a place, and without what follows its first tokens."""
    _, spans = encode_with_spans(tokenizer, sentence)
    (start, end), last = spans[place], spans[:LONGEST][-1, 1]
    return Gap((sentence[:start] + MASK + sentence[end:last]).strip(), sentence[start:end])
