"""Benchmark settings, and the subjects of each setting."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from benchmark.batches import Batch, Case
from mae_lm_fairseq.core.config import MaskedAutoencoderConfig, MaskJoin
from mae_lm_fairseq.cost.flops import TRAINING, Positions, forward_flops
from mae_lm_fairseq.utils.errors import UserError


@dataclass(frozen=True)
class Setting:
    """Size of model and batch, and the extent of the measurement."""

    encoder_layers: int
    decoder_layers: int
    dim: int
    heads: int
    vocab_size: int
    length: int
    rows: int
    device: str
    precisions: tuple[str, ...]
    """The first one is used for the ratios without a suffix."""
    steps: int
    """Timed steps per subject, unless the command line sets another number."""
    together: int
    """Number of processes that run at the same time: as many as fit into the memory of a typical machine."""
    extras: bool = True
    """Whether to measure more than the main comparisons: Hugging Face's models, the other attention backend, everything
    in the other precisions, and fairseq's Adam."""
    compiled: tuple[str, ...] = ("fp32", "bf16")
    """Precisions to measure with ``--compile``, which takes minutes at base size."""
    sweep_rows: tuple[int, ...] = ()
    sweep_lengths: tuple[int, ...] = ()
    sweep_masks: tuple[float, ...] = ()
    matrix: int = 2048
    """Rows and columns of the matrix product that measures the machine's rate."""
    minutes: float = 60
    """Time limit: no further subject or step starts afterwards."""
    only: tuple[str, ...] = ()
    """Names of the only subjects to measure; empty for all."""
    data_bin: str = ""
    """Data-bin to take the batches from; empty for invented text."""
    left_out: tuple[str, ...] = ()
    """Precisions that this machine has no instructions for."""

    @property
    def attention(self) -> tuple[str, ...]:
        """Attention backends of models that are not compiled: the device's default; with extras also the others."""
        backends = ("fused", "sdpa", "eager") if self.device == "cuda" else ("eager", "sdpa")
        return backends if self.extras else backends[:1]

    def case(self, **changes) -> Case:
        """Return the default batch of this setting, with changes."""
        return replace(Case(self.length, self.rows), **changes)

    def config(self, **changes) -> MaskedAutoencoderConfig:
        """Return the configuration of MAE-LM in this size, with changes."""
        return MaskedAutoencoderConfig(
            encoder_layers=self.encoder_layers,
            decoder_layers=self.decoder_layers,
            encoder_embed_dim=self.dim,
            encoder_ffn_embed_dim=4 * self.dim,
            encoder_attention_heads=self.heads,
            **changes,
        )


_SMALL = Setting(4, 4, 256, 4, 8_000, 128, 16, "cpu", ("fp32", "bf16"), steps=5, together=8, minutes=10)
_BASE = Setting(12, 4, 768, 12, 32_000, 512, 4, "cpu", ("fp32", "bf16"), steps=5, together=3, minutes=9)
_HALF = ("bf16", "fp16")
_LARGE = Setting(24, 4, 1024, 16, 32_000, 512, 1, "cuda", _HALF, steps=10, together=4, extras=False)
_COST_OF_3ML = ("roberta_eager", "three_ml_eager")
_GPU_SWEEPS = {"sweep_lengths": (128, 256), "sweep_masks": (0.3, 0.5), "matrix": 8192}

SETTINGS = {
    "cpu-tiny": Setting(
        2, 2, 32, 2, 100, 16, 4, "cpu", ("fp32",), steps=2, together=40, matrix=64, extras=False, compiled=()
    ),
    "cpu-small": replace(_SMALL, sweep_rows=(8, 32), sweep_lengths=(64, 256, 512), sweep_masks=(0.3, 0.5)),
    "cpu-base": replace(_BASE, extras=False, compiled=("bf16",)),
    "cpu-large": replace(_LARGE, device="cpu", precisions=("fp32",), steps=7, together=2, only=_COST_OF_3ML),
    "gpu-base": replace(
        _BASE, rows=64, device="cuda", precisions=("bf16", "fp16"), steps=10, minutes=60, **_GPU_SWEEPS
    ),
    "gpu-large": replace(_LARGE, rows=32, extras=True, **_GPU_SWEEPS),
}


MODERN_BERT = "ModernBertForMaskedLM"
WITH_FP16_OPTIMIZER = ("ours", "fairseq_roberta")
"""Kinds of subjects that train in fp16 as ``fairseq-train --fp16`` does."""
DIFFERENCES = {
    MODERN_BERT: "GeGLU of 8/3 of the hidden size (as many weights as 4 with GELU), rotary positions, pre-norm, no "
    "biases, attention within 128 tokens in two of three layers (masked: SDPA computes all scores), logits at the "
    "predicted positions only",
}
"""Differences from RoBERTa of the same size, by an option of the subject."""


@dataclass(frozen=True)
class Subject:
    """A model that is trained in its own process, with one or several rows in the table."""

    name: str
    kind: str
    """Module in :mod:`benchmark.workers` that builds it."""
    precision: str
    cases: tuple[Case, ...] = ()
    options: tuple[str, ...] = ()
    """Options for that module: a command line, or the name of a class."""
    optimizer: str = "torch"
    """``torch`` for torch's fused AdamW, which all peers use; ``fairseq`` for fairseq's own Adam."""
    decoder_layers: int = 0
    swept: bool = False
    """Whether the table also has the same name with other batches."""

    @property
    def title(self) -> str:
        """Name of the subject, with its batches if the name is not unique."""
        return f"{self.name} ({'; '.join(map(str, self.cases))})" if self.swept else self.name

    @property
    def compiled(self) -> bool:
        return "--compile" in self.options

    @property
    def method(self) -> str:
        """How the subject trains in its precision, and other differences from the models of the same size."""
        if self.precision == "fp32":
            precision = "float32"
        elif self.precision == "fp16" and self.kind in WITH_FP16_OPTIMIZER:
            precision = "weights in float16, fairseq's FP16Optimizer, as with --fp16"
        elif self.kind == "ours":
            precision = "--autocast bf16"
        else:
            precision = "torch.autocast" + " and GradScaler" * (self.precision == "fp16")
        return "; ".join([precision, *(DIFFERENCES[word] for word in self.options if word in DIFFERENCES)])

    @property
    def profiled(self) -> bool:
        """Whether to measure where the time of a step goes."""
        return self.kind == "ours" and self.optimizer == "torch" and not self.compiled and not self.swept

    def flops(self, setting: Setting, batch: Batch) -> int:
        """Return the FLOPs of a training step by formula. Peers also compute padding, and some more positions."""
        samples = batch.samples()
        if self.kind != "ours":
            samples = list(self._padded(samples))
        decoder = {"decoder_layers": self.decoder_layers}
        if not self.decoder_layers:
            decoder["mask_join"] = MaskJoin.embeddings
        config = replace(setting.config(), **decoder)
        return TRAINING * forward_flops(config, setting.vocab_size, samples).total

    def _padded(self, samples: list[Positions]) -> Iterator[Positions]:
        sequence, visible = max(s.sequence for s in samples), max(s.visible for s in samples)
        predicts_everywhere = self.kind == "hugging_face" and MODERN_BERT not in self.options
        for sample in samples:
            # The authors' decoder computes all positions of its last layer.
            predicted = sequence if predicts_everywhere else sample.predicted
            yield Positions(sequence, visible, predicted, decoded=sequence)


def feasible(setting: Setting) -> Setting:
    """Return a setting without what this machine cannot do: an emulated product in bfloat16 takes minutes."""
    import torch  # not for --help

    if setting.device != "cpu" or torch.ops.mkldnn._is_mkldnn_bf16_supported():
        return setting
    precisions, compiled = (
        tuple(one for one in kinds if one != "bf16") for kinds in (setting.precisions, setting.compiled)
    )
    return replace(setting, precisions=precisions, compiled=compiled, left_out=("bf16",))


def subjects(setting: Setting, authors: Path | None) -> list[list[Subject]]:
    """Return all subjects of a setting, in groups that run at the same time with alternating steps.

    Args:
        authors: an importable copy of the authors' repository.
    """
    full = (setting.case(),)
    first, *others = setting.precisions
    default = setting.attention[0]
    found = [_authors(setting, first, full, authors)] if authors else []
    if first in setting.compiled:
        found += _ours(setting, first, full, "compile")
    for backend in setting.attention:
        found += _ours(setting, first, full, backend)
    for precision in others:
        found += _ours(setting, precision, full, "compile")[:1] if precision in setting.compiled else []
        found += [_authors(setting, precision, full, authors)] if authors and setting.extras else []
        found += _ours(setting, precision, full, default)[: 2 if setting.extras else 1]
    found += _peers(setting)
    if setting.extras:
        found.append(replace(_ours(setting, first, full, default)[0], name="mae_lm_fairseq_adam", optimizer="fairseq"))
    if setting.only:
        return [*_chunks([subject for subject in found if subject.name in setting.only], setting.together)]
    return [*_chunks(found, setting.together), *_sweep(setting, authors)]


def chosen(setting: Setting, names: str, authors: Path | None) -> Setting:
    """Return the setting with only the subjects that a comma-separated list names, extras included.

    Raises:
        UserError: if the setting has no subject of a name.
    """
    setting = replace(setting, extras=True, only=())
    known = {subject.name for group in subjects(setting, authors) for subject in group}
    for name in names.split(","):
        if name not in known:
            raise UserError(f"--only {name}: this setting has {', '.join(sorted(known))}")
    return replace(setting, only=tuple(names.split(",")))


def _ours(setting: Setting, precision: str, cases: tuple[Case, ...], variant: str) -> list[Subject]:
    """Return MAE-LM, the RoBERTa preset, and 3ML-self's setting: half of the text masked, two decoder layers.

    ``variant`` is ``compile``, or the attention backend of the models that are not compiled.
    """
    ending = _ending(setting, precision) + ("" if variant == "compile" else f"_{variant}")
    options = ("--compile",) if variant == "compile" else ("--attention-backend", variant)
    options += _precision(precision)
    half = tuple(replace(case, mask_prob=0.5) for case in cases)
    mae_lm, roberta = ("--arch", "mae_lm_base"), ("--arch", "mae_lm_roberta_base")
    layers = setting.decoder_layers
    return [
        _our(setting, f"mae_lm{ending}", precision, cases, layers, *mae_lm, *options),
        _our(setting, f"roberta{ending}", precision, cases, 0, *roberta, *options),
        _our(setting, f"three_ml{ending}", precision, half, 2, *mae_lm, *options),
    ]


def _ending(setting: Setting, precision: str) -> str:
    return "" if precision == setting.precisions[0] else f"_{precision}"


def _precision(precision: str) -> tuple[str, ...]:
    return ("--autocast", "bf16") if precision == "bf16" else ()


def _our(setting: Setting, name: str, precision: str, cases: tuple, decoder_layers: int, *options: str) -> Subject:
    options += ("--decoder-layers", str(decoder_layers), "--max-positions", str(cases[0].length), *_shape(setting))
    return Subject(name, "ours", precision, cases, options, decoder_layers=decoder_layers)


def _peers(setting: Setting) -> Iterable[Subject]:
    """Yield the RoBERTa preset without relative positions, and its equivalents in fairseq and Hugging Face."""
    cases = (setting.case(),)
    for precision in setting.precisions if setting.extras else setting.precisions[:1]:
        ending = _ending(setting, precision)
        options = ("--arch", "mae_lm_roberta_base", "--relative-buckets", "0", *_precision(precision))
        if not ending and precision in setting.compiled:  # compiling takes half a minute, and time is limited
            yield _our(setting, "roberta_plain", precision, cases, 0, *options, "--compile")
        for backend in setting.attention[: 1 if ending else 2]:
            backed = ("--attention-backend", backend, *options)
            yield _our(setting, f"roberta_plain{ending}_{backend}", precision, cases, 0, *backed)
        yield _fairseq_roberta(setting, f"fairseq_roberta{ending}", precision, cases)
        if setting.extras:
            yield Subject(f"hf_roberta{ending}", "hugging_face", precision, cases, ("RobertaForMaskedLM",))
            yield Subject(f"hf_modernbert{ending}", "hugging_face", precision, cases, (MODERN_BERT,))
    if setting.extras:
        yield Subject("hf_mpnet", "hugging_face", setting.precisions[0], cases, ("MPNetForMaskedLM",))


def _fairseq_roberta(setting: Setting, name: str, precision: str, cases: tuple[Case, ...]) -> Subject:
    options = ("--arch", "roberta_base", "--max-positions", str(cases[0].length), *_shape(setting))
    return Subject(name, "fairseq_roberta", precision, cases, options)


def _authors(setting: Setting, precision: str, cases: tuple[Case, ...], repository: Path) -> Subject:
    """Return MAE-LM as in the authors' pretraining script; their decoder's size needs separate options."""
    options = ["--arch", "ae", "--rel-pos", "1", "--rel-pos-bins", "64", "--max-rel-pos", "128", "--no-return-mask"]
    options += ["--gen-decoder-layers", str(setting.decoder_layers), "--tokens-per-sample", str(cases[0].length)]
    options += [*_shape(setting), *(option.replace("encoder", "decoder") for option in _shape(setting)[2:])]
    options = (str(repository), *options)
    name = f"authors{_ending(setting, precision)}"
    return Subject(name, "authors", precision, cases, options, decoder_layers=setting.decoder_layers)


def _shape(setting: Setting) -> tuple[str, ...]:
    return (
        *("--encoder-layers", str(setting.encoder_layers)),
        *("--encoder-embed-dim", str(setting.dim)),
        *("--encoder-ffn-embed-dim", str(4 * setting.dim)),
        *("--encoder-attention-heads", str(setting.heads)),
    )


def _sweep(setting: Setting, authors: Path | None) -> Iterator[list[Subject]]:
    """Yield subjects for varied numbers of sequences, masking rates and sequence lengths.

    Each length has its own model, as in practice.
    """
    if setting.sweep_rows:
        growing = tuple(setting.case(rows=rows) for rows in setting.sweep_rows)
        yield [replace(_ours(setting, setting.precisions[0], growing, setting.attention[0])[0], swept=True)]
    tokens = setting.rows * setting.length
    for length in (setting.length, *setting.sweep_lengths) if setting.sweep_masks or setting.sweep_lengths else ():
        usual = Case(length, tokens // length)
        cases = (usual,)
        if length == setting.length:
            cases = tuple(replace(usual, mask_prob=rate) for rate in setting.sweep_masks)
        group = _ours(setting, setting.precisions[0], cases, setting.attention[0])[:2]
        group.append(_fairseq_roberta(setting, "fairseq_roberta", setting.precisions[0], cases))
        group.append(Subject("hf_roberta", "hugging_face", setting.precisions[0], cases, ("RobertaForMaskedLM",)))
        if authors:
            group.append(_authors(setting, setting.precisions[0], cases, authors))
        yield from _chunks([replace(subject, swept=True) for subject in group], setting.together)


def _chunks(subjects: list[Subject], size: int) -> Iterator[list[Subject]]:
    return (subjects[start : start + size] for start in range(0, len(subjects), size))
