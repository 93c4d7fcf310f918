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
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from mae_lm_fairseq.measures.kind import Data, Kind, MaskedText, ModelOptions, Trained
from mae_lm_fairseq.utils.command_line import Count, File, OutputFile
from mae_lm_fairseq.utils.files import write_json
from mae_lm_fairseq.utils.output import markdown_table
from mae_lm_fairseq.utils.versions import versions

LARGEST_PERPLEXITY = 1e12
"""Maximum of the perplexities that are reported; a larger one says nothing, and may not fit a float."""


@dataclass(frozen=True, kw_only=True)
class Loss(Kind, MaskedText):
    """Masked loss at fixed positions, the same for all models.

    Attributes:
        on: the held-out text, or the validation split of the data-bin (``valid``: all of it), which has the loss alone.
    """

    kind: ClassVar = "loss"
    with_head: ClassVar = True
    numbers: ClassVar = ("loss", "accuracy", "unigram_entropy")
    shown: ClassVar = ("loss", "accuracy")
    on: Literal["text", "valid"] = "text"

    @property
    def needs(self) -> tuple[str, ...]:
        return ("text",) if self.on == "text" else ()

    def values(self) -> list[str] | None:
        return super().values() if self.on == "text" else ["loss"]

    def check(self, data: Data) -> None:
        if self.on == "text":
            super().check(data)

    def measure(self, model: Trained) -> dict[str, float]:
        """Return loss (nats per masked token), accuracy and, of a text, its unigram entropy."""
        from mae_lm_fairseq.measures.losses import load_with_validation_split, text_loss, validation_loss

        if self.on == "text":
            return text_loss(model.open(with_head=True), model, self)
        masking = {"mask_prob": self.mask_prob, "leave_unmasked_prob": 0.0, "random_token_prob": 0.0}
        masking |= {"mask_whole_words": False, "seed": self.seed}
        return {"loss": validation_loss(*load_with_validation_split(model.path, model.data.data_bin, **masking))}

    def recorded(self, found: dict[str, float]) -> dict[str, float]:
        return {name: found[name] for name in self.values()}


@dataclass(frozen=True, kw_only=True)
class Evaluate(Kind, MaskedText):
    """Loss, accuracy and pseudo-perplexity on the held-out text, as ``mae-lm evaluate`` measures them.

    Attributes:
        tokens: tokens of the text to use for loss and accuracy.
        pseudo_tokens: tokens to use for pseudo-perplexity, which predicts each of them twice.
        mask_prob: fraction of the tokens to mask for loss and accuracy.
    """

    kind: ClassVar = "evaluate"
    needs: ClassVar = ("text",)
    with_head: ClassVar = True
    numbers: ClassVar = (
        *("loss", "unigram_entropy", "accuracy", "predicted"),
        *("pseudo_perplexity_per_token", "tokens", "pseudo_perplexity_per_word", "words"),
    )
    shown: ClassVar = ("loss", "accuracy", "pseudo_perplexity_per_token")
    pseudo_tokens: Count = 5_000

    def measure(self, model: Trained) -> dict[str, float | None]:
        """Return loss, accuracy and pseudo-perplexities, and of how many tokens and words; see :func:`perplexity`."""
        from mae_lm_fairseq.measures.losses import pseudo_log_likelihoods, text_loss

        reader = model.open(with_head=True)
        found = text_loss(reader, model, self)
        for name, (total, count) in pseudo_log_likelihoods(reader, model, self, self.pseudo_tokens).items():
            found |= {f"pseudo_perplexity_per_{name}": perplexity(total, count), f"{name}s": count}
        return found

    def table(self, models: Mapping[str, Mapping[str, Any]]) -> str:
        """Return what is found in models, by label, as a Markdown table."""
        header = ["model", f"loss at {self.mask_prob:.0%} masked (nats)", "unigram entropy (nats)", "accuracy"]
        header += ["pseudo-perplexity per token", "pseudo-perplexity per word"]
        rows = []
        for label, found in models.items():
            perplexities = (found[f"pseudo_perplexity_per_{name}"] for name in ("token", "word"))
            cells = (f"above {LARGEST_PERPLEXITY:.0e}" if one is None else f"{one:,.2f}" for one in perplexities)
            losses = (f"{found[name]:.3f}" for name in ("loss", "unigram_entropy"))
            rows.append([label, *losses, f"{found['accuracy']:.1%}", *cells])
        return markdown_table(header, rows)


def perplexity(log_likelihood: float, count: int) -> float | None:
    """Return the perplexity of ``count`` tokens or words; None if it is above :data:`LARGEST_PERPLEXITY`.

    A line without spaces is one word, which can be as long as a sequence.
    """
    loss = -log_likelihood / count
    return math.exp(loss) if loss <= math.log(LARGEST_PERPLEXITY) else None


@dataclass(frozen=True, kw_only=True)
class Options(ModelOptions, Evaluate):
    """Models to evaluate.

    Attributes:
        text: UTF-8 text, plain or compressed.
        out: also write the numbers to this JSON file.
    """

    text: File
    out: OutputFile | None = None


def main(options: Options) -> None:
    """Run the verb."""
    models = options.trained(options, Data(options.data_bin, text=options.text))
    found = {model.label: {"model": str(model.path), **options.measure(model)} for model in models}
    print(options.table(found))
    if options.out:
        names = ("ema", "tokens", "pseudo_tokens", "tokens_per_sample", "mask_prob", "seed")
        settings = {name: getattr(options, name) for name in names}
        about = {"versions": versions(), "text": str(options.text), "settings": settings}
        write_json(options.out, about | {"models": found})
