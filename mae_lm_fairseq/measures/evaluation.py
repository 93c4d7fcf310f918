"""Measure how well masked language models predict a text.

Prints a table of all models. Loss and accuracy are those at masked positions, which depend on the seed and the tokens
alone, so that models with the same tokenizer predict the same tokens. The unigram entropy is the lowest loss with the
same prediction at every position. Pseudo-perplexity per token masks every token on its own. Pseudo-perplexity per word
masks every word (what white space separates) with all of its subwords, and can be compared between models with
different tokenizers.

Example:
    mae-lm evaluate checkpoint_last.pt --data-bin data-bin --text valid.txt --out evaluation.json
"""

import math
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Literal

from mae_lm_fairseq.measures.measure import Baseline, Data, MaskedText, Measure, ModelToMeasure, Value
from mae_lm_fairseq.measures.readers import SPECIAL_IDS, Reader
from mae_lm_fairseq.measures.verb import ModelOptions
from mae_lm_fairseq.statistics.token_states import mask_texts
from mae_lm_fairseq.trained.masked_prediction import (
    NEVER_MASKED,
    Masking,
    Outcome,
    Words,
    each_token,
    each_word,
    predict,
    unigram_entropy,
)
from mae_lm_fairseq.utils.command_line import Count, File, OutputFile
from mae_lm_fairseq.utils.errors import UserError
from mae_lm_fairseq.utils.files import write_json
from mae_lm_fairseq.utils.output import markdown_table, progress_bar

LARGEST_PERPLEXITY = 1e12
"""Maximum of the perplexities that are reported; a larger one says nothing, and may not fit a float."""
_ENTROPY = Value("unigram_entropy")
_FREQUENCIES = Baseline(_ENTROPY.name, "unigram entropy: token frequencies alone")
_LOSS = Value("loss", "loss (nats per predicted token)", shown=True, baseline=_FREQUENCIES)
_ACCURACY = Value("accuracy", "accuracy (fraction of the predicted tokens)", shown=True)


@dataclass(frozen=True, kw_only=True)
class Loss(Measure, MaskedText):
    """Masked loss at fixed positions, the same for all models.

    Attributes:
        on: the held-out text, or the validation split of the data-bin (``valid``: all of it), which has the loss alone.
    """

    kind: ClassVar = "loss"
    needs: ClassVar = ("text",)
    with_head: ClassVar = True
    values: ClassVar = (_LOSS, _ACCURACY, _ENTROPY)
    on: Literal["text", "valid"] = "text"

    @property
    def on_valid(self) -> bool:
        """Whether it measures on the validation split."""
        return self.on == "valid"

    def needed(self) -> Sequence[str]:
        return () if self.on_valid else self.needs

    def value_names(self) -> list[str]:
        return [_LOSS.name] if self.on_valid else super().value_names()

    def check(self, data: Data) -> None:
        if not self.on_valid:  # whose tokens are read as they are, without a tokenizer
            super().check(data)

    def check_masks(self, masks: str) -> None:
        if self.on_valid and masks != "trained":
            raise UserError('does not apply to the loss on the validation split; remove it, or on = "valid"')

    def measure(self, model: ModelToMeasure) -> dict[str, float]:
        """Return loss (nats per masked token), accuracy and, of a text, its unigram entropy."""
        if self.on_valid:
            return {"loss": self._validation_loss(model)}
        return text_loss(model.open(with_head=True), model, self)

    def _validation_loss(self, model: ModelToMeasure) -> float:
        from mae_lm_fairseq.tasks.validation_loss import load_with_validation_split, validation_loss  # needs fairseq

        model_and_task = load_with_validation_split(
            model.path,
            model.data.data_bin,
            mask_prob=self.mask_prob,
            loss_weight="equal",
            leave_unmasked_prob=0.0,
            random_token_prob=0.0,
            mask_whole_words=False,
            mask_function=None,
            seed=self.seed,
        )
        return validation_loss(*model_and_task)

    def recorded(self, result: dict[str, float]) -> dict[str, float]:
        return {name: result[name] for name in self.value_names()}


@dataclass(frozen=True, kw_only=True)
class Evaluate(Measure, MaskedText):
    """Loss, accuracy and pseudo-perplexity on the held-out text, as ``mae-lm evaluate`` measures them.

    Attributes:
        tokens: tokens of the text to use for loss and accuracy.
        pseudo_tokens: tokens to use for pseudo-perplexity, which predicts each of them twice.
        mask_prob: fraction of the tokens to mask for loss and accuracy.
    """

    kind: ClassVar = "evaluate"
    needs: ClassVar = ("text",)
    with_head: ClassVar = True
    values: ClassVar = (
        _LOSS,
        _ENTROPY,
        _ACCURACY,
        Value("predicted"),
        Value("pseudo_perplexity_per_token", "pseudo-perplexity per token", shown=True),
        Value("tokens"),
        Value("pseudo_perplexity_per_word"),
        Value("words"),
    )
    pseudo_tokens: Count = 5_000

    def measure(self, model: ModelToMeasure) -> dict[str, float | None]:
        """Return loss, accuracy and pseudo-perplexities, and of how many tokens and words; see :func:`perplexity`."""
        reader = model.open(with_head=True)
        values = text_loss(reader, model, self)
        texts = [text for text, _ in reader.texts(model.data.text, self.tokens_per_sample, self.pseudo_tokens)]
        for unit, mask_each in {"token": each_token, "word": each_word}.items():
            maskings = [mask_each(text.words) for text in texts]
            outcome = _outcome(reader, texts, maskings, f"{model.label}, {unit}s")
            log_likelihood = float(outcome.log_likelihoods.sum())
            count = sum(len(masking.predicted) for masking in maskings)
            values[f"pseudo_perplexity_per_{unit}"] = perplexity(log_likelihood, count)
            values[f"{unit}s"] = count
        return values


def evaluation_table(models: Mapping[str, Mapping[str, Any]], mask_prob: float) -> str:
    """Return the values of :class:`Evaluate` of models, by label, as a Markdown table."""
    header = [
        "model",
        f"loss at {mask_prob:.0%} masked (nats)",
        "unigram entropy (nats)",
        "accuracy",
        "pseudo-perplexity per token",
        "pseudo-perplexity per word",
    ]
    rows = []
    for label, values in models.items():
        row = [
            label,
            f"{values['loss']:.3f}",
            f"{values['unigram_entropy']:.3f}",
            f"{values['accuracy']:.1%}",
            _perplexity_cell(values["pseudo_perplexity_per_token"]),
            _perplexity_cell(values["pseudo_perplexity_per_word"]),
        ]
        rows.append(row)
    return markdown_table(header, rows)


def _perplexity_cell(value: float | None) -> str:
    return f"above {LARGEST_PERPLEXITY:.0e}" if value is None else f"{value:,.2f}"


def perplexity(log_likelihood: float, count: int) -> float | None:
    """Return the perplexity of ``count`` tokens or words; None if it is above :data:`LARGEST_PERPLEXITY`.

    A line without spaces is one word, which can be as long as a sequence.
    """
    loss = -log_likelihood / count
    if loss > math.log(LARGEST_PERPLEXITY):
        return None
    return math.exp(loss)


def text_loss(reader: Reader, model: ModelToMeasure, sample: MaskedText) -> dict[str, float]:
    """Return loss and accuracy at the masked positions of a text, its unigram entropy, and how many are predicted.

    Args:
        model: names the text, and is named in the progress display.
        sample: how much of the text is read, and masked.

    Raises:
        UserError: if the text cannot be read, or nothing of it is masked.
    """
    texts = [text for text, _ in reader.texts(model.data.text, sample.tokens_per_sample, sample.tokens)]
    pad = reader.predictor.pad
    maskings = []
    for number, text in enumerate(texts):
        ids = text.ids.tolist()
        batch = mask_texts([ids], pad, SPECIAL_IDS, sample.mask_prob, sample.seed, first=number)
        rows = batch.is_masked.numpy()
        rows = rows[rows.any(1)]  # none if the fraction is less than one token
        maskings.append(Masking(hidden=rows, predicted=rows))

    outcome = _outcome(reader, texts, maskings, f"{model.label}, masked positions")
    predicted = int(outcome.predicted.sum())
    if not predicted:
        fraction = f"{sample.mask_prob:g} of each sequence"
        raise UserError(f"{model.data.text} is empty, or too short to mask {fraction}; use a longer text")
    maskable = [text.ids[text.words != NEVER_MASKED] for text in texts]
    return {
        "loss": -float(outcome.log_likelihoods.sum()) / predicted,
        "unigram_entropy": unigram_entropy(maskable),
        "accuracy": int(outcome.correct.sum()) / predicted,
        "predicted": predicted,
    }


def _outcome(reader: Reader, texts: Sequence[Words], maskings: Sequence[Masking], title: str) -> Outcome:
    ids = [text.ids for text in texts]
    return predict(reader.predictor, ids, maskings, partial(progress_bar, desc=title))


@dataclass(frozen=True, kw_only=True)
class Options(ModelOptions):
    """Models to evaluate.

    Attributes:
        text: UTF-8 text, plain or compressed.
        out: also write the numbers to this JSON file.
    """

    measure: Evaluate
    text: File
    out: OutputFile | None = None

    def output(self) -> AbstractContextManager:
        return nullcontext()

    def about(self) -> dict[str, Any]:
        settings = {"ema": self.ema}
        for name in ("tokens", "pseudo_tokens", "tokens_per_sample", "mask_prob", "seed"):
            settings[name] = getattr(self.measure, name)
        return {"text": str(self.text), "settings": settings}

    def compare(self, model: ModelToMeasure) -> dict[str, Any]:
        return {"ends_lines": model.ends_lines, **self.measure.measure(model)}

    def write(self, results: Mapping[str, Any]) -> None:
        print(evaluation_table(results["models"], self.measure.mask_prob))
        if self.out:
            write_json(self.out, results)
