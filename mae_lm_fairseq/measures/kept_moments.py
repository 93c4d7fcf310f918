"""Second moments of hidden states that measures keep."""

from pathlib import Path
from typing import NamedTuple

from torch import Tensor

from mae_lm_fairseq.statistics.effective_rank import SecondMoments
from mae_lm_fairseq.trained.checkpoint_file import save_safetensors


class KeptMoments:
    """Second moments of hidden states, from which any rank can be computed without the model.

    The safetensors file has, for each name and layer, ``NAME.LAYER.products`` float32[dim, dim] (sum of the outer
    products of the states), ``.sums`` float32[dim] and ``.count``.
    """

    def __init__(self):
        self.by_layer: dict[tuple[int, str], _Float32Moments] = {}

    def add(self, layer: int, name: str, moments: SecondMoments) -> None:
        """Add the moments of a layer."""
        products = moments.products.sum(0).float()
        sums = moments.sums.sum(0).float()
        count = moments.counts.sum(0).float()
        self.by_layer[layer, name] = _Float32Moments(products, sums, count)

    def together(self, layer: int, input_name: str) -> SecondMoments:
        """Return the second moments of real tokens and of ``[MASK]`` in an input, as one matrix of states."""
        real = self.by_layer[layer, f"real_{input_name}"]
        mask = self.by_layer[layer, f"mask_{input_name}"]
        moments = SecondMoments(real.sums.numel())
        for kept in (real, mask):
            moments.counts += kept.count
            moments.sums += kept.sums
            moments.products += kept.products
        return moments

    def save(self, path: Path) -> None:
        """Write the file, whose path is given without an ending."""
        tensors = {}
        for (layer, name), moments in self.by_layer.items():
            for field, tensor in moments._asdict().items():
                tensors[f"{name}.{layer}.{field}"] = tensor
        save_safetensors(tensors, path.with_suffix(".safetensors"))


class _Float32Moments(NamedTuple):
    """Second moments of all chunks of a text, in float32."""

    products: Tensor
    sums: Tensor
    count: Tensor
