"""Effective ranks and exclusive directions of a trained model's hidden states on a text."""

from pathlib import Path
from typing import Any

from safetensors.torch import save_file
from torch import Tensor

from mae_lm_fairseq.measures.kind import Trained
from mae_lm_fairseq.measures.rank import Exclusivity, OneDocumentError, Rank
from mae_lm_fairseq.statistics.effective_rank import SecondMoments, ranks
from mae_lm_fairseq.statistics.exclusivity import exclusivity, halves
from mae_lm_fairseq.statistics.rank_profile import rank_profile
from mae_lm_fairseq.utils.errors import UserError
from mae_lm_fairseq.utils.output import progress_bars


class Moments:
    """Second moments of hidden states, from which any rank can be computed without the model.

    The safetensors file has, for each name and layer, ``NAME.LAYER.products`` float32[dim, dim] (sum of the outer
    products of the states), ``.sums`` float32[dim] and ``.count``.
    """

    def __init__(self):
        self.tensors: dict[str, Tensor] = {}

    def add(self, layer: int, name: str, moments: SecondMoments) -> None:
        """Add the moments of a layer."""
        for kind in ("products", "sums", "counts"):
            self.tensors[f"{name}.{layer}.{kind.replace('counts', 'count')}"] = getattr(moments, kind).sum(0).float()

    def together(self, layer: int, kind: str) -> SecondMoments:
        """Return the second moments of real tokens and of ``[MASK]`` in an input, as one matrix of states."""
        both = [f"{tokens}_{kind}.{layer}" for tokens in ("real", "mask")]
        moments = SecondMoments(self.tensors[f"{both[0]}.sums"].numel())
        for name in both:
            moments.counts += self.tensors[f"{name}.count"]
            moments.sums += self.tensors[f"{name}.sums"]
            moments.products += self.tensors[f"{name}.products"]
        return moments

    def save(self, path: Path | None) -> None:
        """Write the file, whose path is given without an ending; None writes nothing."""
        if path is not None:
            save_file(self.tensors, path.with_suffix(".safetensors"))


def measure_ranks(model: Trained, sample: Rank) -> dict[str, Any]:
    """Return the ranks of a model, see :meth:`~mae_lm_fairseq.measures.rank.Rank.measure`.

    Raises:
        UserError: if the text cannot be read, is too short, or none of it is masked.
    """
    reader, path = model.open(), model.data.text
    texts = reader.texts(path, sample.tokens_per_sample, sample.tokens)
    if len(texts) < 2:
        raise UserError(
            f"{path} is too short, or --tokens {sample.tokens} too small: at least two texts of up to "
            f"{sample.tokens_per_sample} tokens are needed"
        )
    longest = max(len(text) for text in texts)
    if not round(sample.mask_prob * longest):
        raise UserError(f"--mask-prob {sample.mask_prob}: masks no token of texts of up to {longest} tokens")
    kept, keep = Moments(), {}
    if model.kept:
        keep["keep_moments"] = kept.add
    profile = rank_profile(reader.states, texts, reader.special, sample, progress_bars(model.label), **keep)
    if model.kept:
        profile["ranks"] = [one for row in profile["ranks"] for one in _with_all_tokens(row, kept, sample)]
    kept.save(model.kept)
    return profile


def _with_all_tokens(row: dict[str, Any], kept: Moments, sample: Rank) -> list[dict[str, Any]]:
    """Return a row of ranks and, after that of ``[MASK]``, the one of all tokens of the same input and layer."""
    if row["tokens"] != "mask":
        return [row]
    energies = kept.together(row["layer"], row["input"]).energies(centred=sample.centred)[0]
    found = {name: float(rank) for name, rank in ranks(energies, sample.threshold).items()}
    return [row, {"layer": row["layer"], "input": row["input"], "tokens": "all", **found}]


def measure_exclusivity(model: Trained, sample: Exclusivity) -> list[dict[str, Any]]:
    """Return the exclusivity of ``[MASK]``, see :meth:`~mae_lm_fairseq.measures.rank.Exclusivity.measure`."""
    reader, path = model.open(), model.data.text
    texts = reader.texts_of_documents(path, sample.tokens_per_sample, sample.tokens)
    if len({document for _, document in texts}) < 2:
        raise OneDocumentError(f"{path} has a single document; at least two, with a blank line between, are needed")
    ids, words, documents = zip(*((of.ids.tolist(), of.words.tolist(), number) for of, number in texts), strict=True)
    parts, kept = halves(ids, documents, words), Moments()
    masking = sample.mask_prob, sample.seed
    progress = progress_bars(model.label)
    rows = exclusivity(reader.states, parts, reader.special, *masking, progress, keep_moments=kept.add)
    kept.save(model.kept)
    return rows
