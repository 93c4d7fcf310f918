"""Measure and plot the effective rank of trained models' hidden states, layer by layer.

For each model: real tokens in clean text, real tokens in text with [MASK], and [MASK] itself; for models that keep
[MASK] out of their encoder, both as trained and with [MASK] forced into the encoder. Beside the ranks stands the
exclusivity of [MASK]: its share outside the directions that real tokens use in clean text, less that of real tokens of
other documents, with frequent words and random groups of tokens as controls. Writes ranks.json, ranks.csv, ranks.png,
gaps.png, outside.png and exclusivity.png. The models can also be directories of Hugging Face's transformers that mae-lm
import takes.

Example:
    mae-lm rank checkpoints/mae_lm/checkpoint_last.pt --text valid.txt --data-bin data-bin --out ranks
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any, ClassVar, get_args

from mae_lm_fairseq.measures.exclusivity import Exclusivity
from mae_lm_fairseq.measures.figures import LAYER, Format, lines_by_layer
from mae_lm_fairseq.measures.kept_moments import KeptMoments
from mae_lm_fairseq.measures.measure import MaskedText, Measure, ModelToMeasure, Value, values_by_layer
from mae_lm_fairseq.measures.rank_figures import plot_gaps, plot_outside, plot_ranks, title_end
from mae_lm_fairseq.measures.readers import SPECIAL_IDS
from mae_lm_fairseq.measures.verb import ModelOptions
from mae_lm_fairseq.statistics.effective_rank import ignore_moments, ranks
from mae_lm_fairseq.statistics.rank_profile import RankSettings, rank_profile
from mae_lm_fairseq.text.tables import write_table
from mae_lm_fairseq.utils.command_line import Argument, Count, File, Fraction
from mae_lm_fairseq.utils.directories import replacing_files
from mae_lm_fairseq.utils.errors import UserError
from mae_lm_fairseq.utils.files import write_json
from mae_lm_fairseq.utils.output import progress_bars

_SHOWN_RANKS = {
    "real_clean": "real tokens in clean text (directions)",
    "real_as_trained": "real tokens beside [MASK] (directions)",
    "mask_as_trained": "[MASK] (directions)",
    "all_as_trained": "real tokens and [MASK] (directions)",
}
_OTHER_RANKS = ("real_forced", "mask_forced", "all_forced")
_FIRST_COLUMNS = ("label", "layer", "input", "tokens", "count", "width")


@dataclass(frozen=True, kw_only=True)
class Rank(Measure, MaskedText):
    """Effective ranks of hidden states, layer by layer; keeps their second moments.

    A study, which keeps the second moments, also has ranks of all tokens: real ones and ``[MASK]`` together, in inputs
    with both. It reads fewer tokens than the verb, as it measures many models, over seeds.

    Attributes:
        seed: seed of masks and resamples.
        threshold: fraction of the sum of squares that defines the threshold rank.
        centred: measure ranks around the mean instead of zero, unlike the paper.
    """

    kind: ClassVar = "rank"
    needs: ClassVar = ("text",)
    values: ClassVar = (
        *(Value(name, description, by_layer=True, shown=True) for name, description in _SHOWN_RANKS.items()),
        *(Value(name, by_layer=True) for name in _OTHER_RANKS),
        *(Value(f"entropy_{name}", by_layer=True) for name in (*_SHOWN_RANKS, *_OTHER_RANKS)),
    )
    tokens: Count = 20_000
    threshold: Fraction = 0.9
    centred: bool = False

    def measure(self, model: ModelToMeasure) -> dict[str, Any]:
        """Return the :meth:`profile` with the fewest resamples: a study tests over seeds."""
        return self.profile(model, resamples=2)

    def profile(self, model: ModelToMeasure, resamples: int) -> dict[str, Any]:
        """Return the result of :func:`~mae_lm_fairseq.statistics.rank_profile.rank_profile`.

        In a study, second moments are kept, and ``ranks`` also has rows of "all" tokens, which are computed from them.

        Raises:
            UserError: if the text cannot be read, is too short, or none of it is masked.
        """
        reader = model.open()
        texts = []
        for text, _ in reader.texts(model.data.text, self.tokens_per_sample, self.tokens):
            texts.append(text.ids.tolist())
        if len(texts) < 2:
            raise UserError(f"{model.data.text} is too short, or --tokens {self.tokens} too small, for two texts")
        longest = max(map(len, texts))
        if not round(self.mask_prob * longest):  # text that is said to have [MASK] would have none
            raise UserError(f"--mask-prob {self.mask_prob}: masks no token of texts of up to {longest} tokens")

        settings = RankSettings(
            mask_prob=self.mask_prob,
            threshold=self.threshold,
            centred=self.centred,
            bootstrap=resamples,
            seed=self.seed,
        )
        is_kept = model.kept is not None
        moments = KeptMoments()
        profile = rank_profile(
            reader.states,
            texts,
            special_ids=SPECIAL_IDS,
            settings=settings,
            progress=progress_bars(model.label),
            keep_moments=moments.add if is_kept else ignore_moments,
        )
        if is_kept:
            profile["ranks"] = self._with_all_tokens(profile["ranks"], moments)
            moments.save(model.kept)
        return profile

    def _with_all_tokens(self, rows: Sequence[dict[str, Any]], moments: KeptMoments) -> list[dict[str, Any]]:
        """Return rows of ranks and, after each of ``[MASK]``, the one of all tokens of the same input and layer."""
        with_all = []
        for row in rows:
            with_all.append(row)
            if row["tokens"] == "mask":
                together = moments.together(row["layer"], row["input"])
                [energies] = together.energies(centred=self.centred)
                values = {name: float(rank) for name, rank in ranks(energies, self.threshold).items()}
                with_all.append({"layer": row["layer"], "input": row["input"], "tokens": "all", **values})
        return with_all

    def recorded(self, result: dict[str, Any]) -> dict[str, list[float | None]]:
        """Return threshold and entropy rank, named TOKENS_INPUT and entropy_TOKENS_INPUT.

        Tokens are ``real``, ``mask`` and, of inputs with both, ``all``. Inputs are ``clean`` text, text with ``[MASK]``
        ``as_trained``, and ``forced`` into the encoder.
        """
        values = values_by_layer(result["layers"] + 1)
        for row in result["ranks"]:
            layer = row["layer"]
            name = f"{row['tokens']}_{row['input']}"
            values[name][layer] = row["threshold"]
            values[f"entropy_{name}"][layer] = row["entropy"]
        return dict(values)


@dataclass(frozen=True, kw_only=True)
class RankOfFewModels(Rank):
    """Effective ranks on more of the text than in a study, which measures many models."""

    tokens: Count = 50_000


@dataclass(frozen=True, kw_only=True)
class Options(ModelOptions):
    """Models and text to measure effective ranks on.

    Attributes:
        text: UTF-8 text that is new to the models, plain or compressed.
        bootstrap: number of bootstrap resamples for the intervals.
        formats: formats in which figures are written besides PNG.
    """

    measure: RankOfFewModels
    text: File
    bootstrap: Annotated[int, Argument("N", at_least=2)] = 100
    formats: Annotated[tuple[Format, ...], Argument("FORMAT")] = ()

    @property
    def exclusivity(self) -> Exclusivity:
        """The measure of exclusivity on the same tokens."""
        return Exclusivity(**{field.name: getattr(self.measure, field.name) for field in fields(MaskedText)})

    def about(self) -> dict[str, Any]:
        return {}

    def compare(self, model: ModelToMeasure) -> dict[str, Any]:
        about = {
            "ema": self.ema,
            "text": str(self.text),
            "tokens_per_sample": self.measure.tokens_per_sample,
            "ends_lines": model.ends_lines,
        }
        profile = self.measure.profile(model, self.bootstrap)
        try:
            rows = self.exclusivity.measure(model)
        except UserError as problem:  # the text, which has ranks, is a single document
            print(f"no exclusivity could be measured: {problem}")
            rows = []
        return {**about, **profile, "exclusivity": rows}

    def write(self, results: Mapping[str, Any]) -> None:
        models = [{"label": label, **model} for label, model in results["models"].items()]
        exclusivities = {model["label"]: self.exclusivity.recorded(model["exclusivity"]) for model in models}
        figures = {"ranks": plot_ranks, "gaps": plot_gaps, "outside": plot_outside}
        names = ["ranks.json", "ranks.csv"]
        stale = ["exclusivity.png"]
        for ending in get_args(Format):
            stale += [f"{name}.{ending}" for name in (*figures, "exclusivity")]
        with replacing_files(self.out, "ranks.json", stale) as made:
            write_json(made / "ranks.json", {**results, "models": models})
            write_csv(made / "ranks.csv", models)
            title = f"Exclusive directions{title_end(models)}"
            for ending in ("png", *self.formats):
                for name, plot in figures.items():
                    plot(made / f"{name}.{ending}", models)
                    names.append(f"{name}.{ending}")
                path = made / f"exclusivity.{ending}"
                if self.exclusivity.figure(path, title, LAYER, lines_by_layer(exclusivities), same={}):
                    names.append(f"exclusivity.{ending}")
        print(f"{self.out}: {', '.join(names)}")


def write_csv(path: Path, models: Sequence[dict[str, Any]]) -> None:
    """Write the ranks as CSV, with a row for each model, layer, input and kind of tokens."""
    rows = []
    for model in models:
        rows += [{"label": model["label"], "width": model["width"], **row} for row in model["ranks"]]
    others = [name for name in rows[0] if name not in _FIRST_COLUMNS]
    write_table(path, [*_FIRST_COLUMNS, *others], rows)
