"""What a trained masked language model knows: its loss, the rank of its encoder's states, a gap to fill."""

import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import sentencepiece
import torch
from fairseq import checkpoint_utils, utils
from torch import Tensor

from mae_lm_fairseq.analysis.effective_rank import effective_rank
from mae_lm_fairseq.criterions.masked_autoencoder_lm import MaskedAutoencoderLMCriterion
from mae_lm_fairseq.text.tokenizer import MASK, WORD_START

LONG_WORD = re.compile(WORD_START + r"[^\W\d_]{4,}")
LONGEST = 40
BATCH = 32


@dataclass(frozen=True)
class Gap:
    """A sentence with one ``<mask>``, and the word that was there, if the sentence comes from a text."""

    sentence: str
    true_word: str | None = None


def load(checkpoint: Path, data: Path, **task_options) -> tuple[torch.nn.Module, object]:
    """A trained model, ready for evaluation, and its task with the validation split loaded.

    Args:
        checkpoint: of fairseq.
        data: the data-bin.
        task_options: those that are to differ from the training's, such as ``mask_prob``.
    """
    models, _, task = checkpoint_utils.load_model_ensemble_and_task(
        [str(checkpoint)], arg_overrides={"data": str(data), **task_options}
    )
    task.load_dataset("valid")
    return models[0].eval(), task


def _batches(task) -> Iterator[dict]:
    """The validation split, in its order."""
    dataset = task.dataset("valid")
    for start in range(0, len(dataset), BATCH):
        yield dataset.collater([dataset[index] for index in range(start, min(start + BATCH, len(dataset)))])


def clean_batches(task) -> Iterator[Tensor]:
    """The validation split as the model gets it, ``[B, T]`` ids a batch, with the true tokens where masks were."""
    pad = task.source_dictionary.pad()
    for batch in _batches(task):
        yield torch.where(batch["target"].ne(pad), batch["target"], batch["net_input"]["src_tokens"])


@torch.no_grad()
def masked_loss(model: torch.nn.Module, task) -> float:
    """The cross-entropy in nats of a masked token of the validation split, computed on a GPU where there is one.

    Which tokens are masked depends on the task's options and seed, not on the model.
    """
    criterion, batches = MaskedAutoencoderLMCriterion(task), _batches(task)
    if torch.cuda.is_available():
        model, batches = model.cuda(), map(utils.move_to_cuda, batches)
    losses, predicted, _ = zip(*(criterion(model, batch) for batch in batches), strict=True)
    return float(sum(losses)) / sum(predicted)


def unigram_entropy(batches: Iterable[Tensor], pad: int) -> float:
    """The entropy in nats of the distribution of tokens in a text, ``<pad>`` left out.

    Everything else counts, as everything else can be masked: ``<s>`` at the start of a sample and ``</s>`` at the end
    of a line too.
    """
    counts = Counter()
    for batch in batches:
        counts.update(batch[batch.ne(pad)].tolist())
    total = counts.total()
    return -sum(count / total * math.log(count / total) for count in counts.values())


@torch.no_grad()
def encoder_rank(model: torch.nn.Module, batches: Iterable[Tensor], pad: int, tokens: int = 10_000) -> tuple[int, int]:
    """The effective rank of the last encoder layer's states, of which it reads about ``tokens``, and its width."""
    states, count = [], 0
    for batch in batches:
        _, extra = model.extract_features(batch, return_all_hiddens=True)
        states.append(extra["inner_states"][-1][batch.ne(pad)])
        count += len(states[-1])
        if count >= tokens:
            break
    states = torch.cat(states)
    return effective_rank(states), states.size(1)


def find_gap(text: Path, pieces: sentencepiece.SentencePieceProcessor) -> Gap:
    """A sentence of a text with one common word replaced by ``<mask>``.

    Takes the first word of four letters or more that is among the 200 most frequent, a single piece of the vocabulary,
    and not at an end of its sentence; where words are not separated by spaces, the middle piece of a long sentence.
    """
    lines = text.read_text(encoding="utf-8").splitlines()
    sentences = [
        pieces.encode(part, out_type=str)[:LONGEST] for line in lines for part in re.split(r"(?<=[.!?]) ", line)
    ]
    words = Counter(piece for sentence in sentences for piece in sentence if LONG_WORD.fullmatch(piece))
    common = {word for word, _ in words.most_common(200)}
    for sentence in sentences:
        for place in range(4, len(sentence) - 3):
            if sentence[place] in common and sentence[place + 1].startswith(WORD_START):
                return _gap_at(sentence, place, pieces)
    longest = max(sentences, key=len)
    return _gap_at(longest, len(longest) // 2, pieces)


def _gap_at(sentence: list[str], place: int, pieces: sentencepiece.SentencePieceProcessor) -> Gap:
    before, after = pieces.decode(sentence[:place]), pieces.decode(sentence[place + 1 :])
    return Gap(f"{before} {MASK} {after}", sentence[place].removeprefix(WORD_START))
