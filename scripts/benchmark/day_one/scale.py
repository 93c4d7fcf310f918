"""Sizes of the programme on a GPU, and of its rehearsal on a CPU."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Scale:
    """Device, model and batch."""

    device: str
    preset: str
    length: int
    """Tokens per sequence."""
    rows: int
    """Sequences per batch."""
    accumulated: int
    """Batches per update."""
    updates: int
    vocabulary: int
    """Symbols of the dictionary, special tokens included."""
    tokens: int
    """Tokens of the training text."""
    attention: tuple[int, int, int]
    """Rows, heads and head size of the measured attention."""
    repetitions: int
    """Timed calls of the attention."""
    matrix: int
    """Rows of the matrices that are multiplied."""
    precisions: dict[str, tuple[str, ...]]
    """Options of ``mae-lm pretrain`` for each precision."""
    setting: str
    """Setting of ``scripts/benchmark.py`` for the comparison with the peers."""
    peers_limits: tuple[str, ...]
    """Options that limit that comparison."""
    curve: str
    """Preset whose loss curve is compared with the committed one."""
    large: str
    """Preset whose memory is compared with ``mae-lm plan``."""

    @property
    def on_gpu(self) -> bool:
        return self.device == "cuda"


FP32 = "fp32"
"""In place of an option: no half precision, which ``mae-lm pretrain`` would choose on a GPU."""
AUTOCAST = ("--autocast", "bf16")
FP16 = ("--fp16",)
FUSED = ("--attention-backend", "fused")
COMPILED_FP32 = (FP32, "--compile", "--encoder-layers", "1", "--decoder-layers", "1")
"""As small as possible: compiling for a CPU takes a minute."""
PEERS = (
    *("mae_lm", "mae_lm_sdpa", "mae_lm_fused", "roberta_sdpa", "roberta_fused", "three_ml_fused"),
    *("roberta_plain_fused", "fairseq_roberta", "hf_roberta"),
    *("mae_lm_fp16_fused", "fairseq_roberta_fp16", "hf_roberta_fp16"),
)
"""Subjects of the setting gpu-base: with all of them, the comparison takes an hour."""
SCALES = {
    "cuda": Scale(
        device="cuda",
        preset="mae_lm_base",
        length=512,
        rows=32,
        accumulated=4,
        updates=15,
        vocabulary=32_000,
        tokens=5_000_000,
        attention=(32, 12, 64),
        repetitions=20,
        matrix=8192,
        precisions={
            "fp16": FP16,
            "autocast bf16": AUTOCAST,
            "autocast bf16, compiled": (*AUTOCAST, "--compile"),
            "autocast bf16, fused, compiled": (*AUTOCAST, *FUSED, "--compile"),
            "fp16, sdpa": (*FP16, "--attention-backend", "sdpa"),
            "bf16": ("--bf16",),
            "fp16, compiled": (*FP16, "--compile"),
            "fp32": (FP32,),
        },
        setting="gpu-base",
        peers_limits=("--minutes", "7", "--only", ",".join(PEERS)),
        curve="mae_lm_small",
        large="mae_lm_large",
    ),
    "cpu": Scale(
        device="cpu",
        preset="mae_lm_tiny",
        length=32,
        rows=8,
        accumulated=1,
        updates=6,
        vocabulary=500,
        tokens=20_000,
        attention=(1, 2, 16),
        repetitions=2,
        matrix=512,
        precisions={
            "fp32": (FP32,),
            "autocast bf16": AUTOCAST,
            "fp32, compiled": COMPILED_FP32,
        },
        setting="cpu-small",
        peers_limits=("--minutes", "4", "--only", "mae_lm_eager,fairseq_roberta,hf_roberta"),
        curve="mae_lm_tiny",
        large="mae_lm_tiny",
    ),
}
