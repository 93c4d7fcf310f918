"""Products of two square matrices, to measure the rate that the machine can reach."""

import time

import torch
from training import HALF


class MatrixProduct:
    """Two square matrices of one precision."""

    def __init__(self, size: int, device: str, dtype: torch.dtype):
        self.left, self.right = torch.randn(2, size, size, device=device).to(dtype)
        self.products = 10 if device == "cuda" else 1

    def rate(self, _batch: str, steps: int) -> list[float]:
        """Return the rate of each of ``steps`` measurements in GFLOP/s."""
        self._seconds()
        work = 2 * len(self.left) ** 3 * self.products
        return [work / self._seconds() / 1e9 for _ in range(steps)]

    def _seconds(self) -> float:
        self._wait()
        start = time.perf_counter()
        for _ in range(self.products):
            self.left @ self.right
        self._wait()
        return time.perf_counter() - start

    def _wait(self) -> None:
        if self.left.is_cuda:
            torch.cuda.synchronize()


def build(spec: dict) -> MatrixProduct:
    """Build a product in ``spec["precision"]``."""
    return MatrixProduct(spec["matrix"], spec["device"], HALF.get(spec["precision"], torch.float32))
