"""Accelerators: peak throughput and memory from their data sheets."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Device:
    """Type of accelerator."""

    fp32: float
    """Peak FLOP/s of float32 without tensor cores, which is torch's default."""
    half: float
    """Peak FLOP/s of dense float16 or bfloat16 matrix products with float32 accumulation."""
    memory: int
    """Memory in bytes."""
    source: str
    has_bf16: bool = True


_A100 = "NVIDIA A100 Tensor Core GPU datasheet (2021)"

DEVICES = {
    "v100": Device(15.7e12, 125e12, 32 * 10**9, "NVIDIA V100 datasheet (2020), SXM2", has_bf16=False),
    "a100-40": Device(19.5e12, 312e12, 40 * 10**9, _A100),
    "a100-80": Device(19.5e12, 312e12, 80 * 10**9, _A100),
    "h100": Device(67e12, 989.5e12, 80 * 10**9, "NVIDIA H100 datasheet (2023), SXM; half of its figure with sparsity"),
    "h200": Device(67e12, 989.5e12, 141 * 10**9, "NVIDIA H200 datasheet (2024), SXM; half of its figure with sparsity"),
    "rtx4090": Device(82.6e12, 165.2e12, 24 * 10**9, "NVIDIA Ada GPU architecture whitepaper (2022), appendix A"),
}


def kind_of_gpu(properties) -> str | None:
    """Return the key in :data:`DEVICES` of a GPU; None if it is not listed.

    Args:
        properties: what ``torch.cuda.get_device_properties`` returns.
    """
    name = properties.name.lower().replace(" ", "").replace("-", "")
    if "a100" in name:
        return "a100-80" if properties.total_memory > 60 * 10**9 else "a100-40"
    return next((kind for kind in DEVICES if kind in name), None)
