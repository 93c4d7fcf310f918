"""Labels of words, by a model that was fine-tuned on token classification."""

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from mae_lm_fairseq.text.offsets import split_words
from mae_lm_fairseq.text.records import check_no_json
from mae_lm_fairseq.text.text_files import read_chunks
from mae_lm_fairseq.text.word_files import WordFile, plain_name, read_words
from mae_lm_fairseq.text.word_labels import BIO, LabelSet, scheme_of, valid_bio
from mae_lm_fairseq.text.word_windows import MIN_SAMPLE, WordWindows
from mae_lm_fairseq.trained.info import WordTask
from mae_lm_fairseq.trained.logits import batch_logits, with_progress
from mae_lm_fairseq.trained.masked_prediction import batches_of_similar_length
from mae_lm_fairseq.trained.validation import WORD_HEAD
from mae_lm_fairseq.utils.errors import UserError
from mae_lm_fairseq.utils.files import write_text


class Tagged(NamedTuple):
    """A labelled word of a text."""

    word: str
    label: str
    start: int
    """First character of the word in the text."""
    end: int
    """The character after its last one."""
    probability: float


class Tagger:
    """Labels words with the hub interface of a fine-tuned model.

    Raises:
        ValueError: if the model was not fine-tuned on token classification, or does not know its labels.
    """

    def __init__(self, model: torch.nn.Module):
        task = model.about.finetuned_on
        if not isinstance(task, WordTask) or WORD_HEAD not in model.model.classification_heads:
            raise ValueError("the model has no labels of words; fine-tune it with mae-lm finetune tagging")
        self.model = model
        # Models of other programs have no record of their scheme.
        scheme = BIO if task.scheme == BIO else scheme_of(task.labels)
        self.labels = LabelSet(task.labels, scheme)
        # A number from the last column, of fairseq-train, is another column in files of another width.
        is_from_the_last = (task.column or "").startswith("-")
        self.column = None if is_from_the_last else task.column
        longest = model.model.max_positions()
        trained_on = max(task.tokens_per_sample or longest, MIN_SAMPLE)
        self.tokens_per_sample = min(trained_on, longest)

    def logits(
        self, sentences: Sequence[Sequence[str]], progress: Callable[[Sequence], Iterable] = iter
    ) -> list[np.ndarray]:
        """Return the logits of the words of each sentence, float32 [words, labels]."""
        windows = WordWindows(sentences, self.model.tokenizer, self.tokens_per_sample)
        return word_logits(self.model.model, windows, progress)

    def label(self, sentences: Sequence[Sequence[str]]) -> list[list[str]]:
        """Return the labels of the words of each sentence; progress goes to standard error."""
        return [self.labels.best(logits) for logits in self.logits(sentences, with_progress)]

    def with_predictions(self, file: WordFile) -> tuple[list[list[str]], str]:
        """Return the labels of the words of a file, and its text with them in a new column.

        There they are valid BIO if the file's own labels are of entities.

        Raises:
            UserError: if a label of the model would be several columns in the file.
        """
        file.check_labels(self.labels.names)
        labels = self.label(file.words)
        predictions = labels
        if scheme_of(file.kinds) == self.labels.scheme == BIO:
            predictions = list(map(valid_bio, labels))
        return labels, file.with_predictions(predictions)

    def tag(self, text: str | Sequence[str]) -> list[Tagged]:
        """Return the labels of a text, or of a list of words; see ``MAELMHubInterface.tag``."""
        if isinstance(text, str):
            spans = split_words(text)
            words = [text[start:end] for start, end in spans]
        else:
            words = text
            spans = []
            start = 0
            for word in words:
                end = start + len(word)
                spans.append((start, end))
                start = end + 1
        [logits] = self.logits([words])
        probabilities = torch.from_numpy(logits).double().softmax(1)
        tagged = []
        for word, (start, end), row in zip(words, spans, probabilities, strict=True):
            label = int(row.argmax())
            tagged.append(Tagged(word, self.labels.names[label], start, end, float(row[label])))
        return tagged


def label_file(model: torch.nn.Module, source: Path, out: Path, column: str | None = None):
    """Write the words of a file with their labels in a new last column.

    A ``.txt`` file is a file of words only if ``column`` is given. Otherwise, for each of its lines, the words and
    their labels are written, separated by tabs, and an empty line. In other files, ``column`` is that of the training
    file by default.

    Raises:
        UserError: if the model does not know its labels, or the file has no words or is malformed.
    """
    try:
        tagger = Tagger(model)
    except ValueError as error:
        raise UserError(str(error)) from None
    if column is None and plain_name(source).suffix.lower() == ".txt":
        text = _labelled_text(tagger, source)
    else:
        file = read_words(source, column or tagger.column, is_labelled=column is not None)
        _, text = tagger.with_predictions(file)
    write_text(out, text)


def _labelled_text(tagger: Tagger, source: Path) -> str:
    check_no_json(source)
    sentences = []
    for chunk in read_chunks(source):
        for line in chunk.lines():
            sentences.append([line[start:end] for start, end in split_words(line)])
    if not any(sentences):
        raise UserError(f"{source}: has no words")
    lines = []
    for words, labels in zip(sentences, tagger.label(sentences), strict=True):
        lines += [f"{word}\t{label}\n" for word, label in zip(words, labels, strict=True)]
        lines.append("\n")
    return "".join(lines)


def word_logits(
    model: torch.nn.Module, windows: WordWindows, progress: Callable[[Sequence], Iterable] = iter
) -> list[np.ndarray]:
    """Return the logits of the words of each sentence, float32 [words, labels].

    ``progress`` wraps the sequence of batches, for example to show a progress bar.
    """
    labels = model.classification_heads[WORD_HEAD].labels
    logits = [np.empty((len(sentence), labels), dtype=np.float32) for sentence in windows.sentences]
    batches = list(batches_of_similar_length(windows.sizes.tolist()))
    for indices, _, output in batch_logits(model, windows, windows.batch, progress(batches), WORD_HEAD):
        rows = output.float().cpu().numpy()
        for index, row in zip(indices, rows, strict=True):
            window = windows.windows[index]
            logits[window.sentence][window.labelled] = row[window.positions]
    return logits
