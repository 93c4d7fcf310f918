"""Comparison of the presets of one size, or of the ablations of MAE-LM, trained on one text.

``mae-lm compare`` uses this module. All variants are trained on the same sequences in the same order for
the same number of updates, and differ only as described in their row. Their losses are comparable: they are measured
after training on the same masked positions, whatever the masking rate in training was.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from mae_lm_fairseq.core.config import SIZES, MaskedAutoencoderConfig, preset_config
from mae_lm_fairseq.experiments import inspection
from mae_lm_fairseq.recipes.settings import recipe
from mae_lm_fairseq.recipes.training_command import training_command
from mae_lm_fairseq.text.manifest import fingerprint
from mae_lm_fairseq.utils.errors import UserError
from mae_lm_fairseq.utils.files import write_json, write_text
from mae_lm_fairseq.utils.markdown import markdown_table
from mae_lm_fairseq.utils.runner import Run, reserve, run_all, updates_done
from mae_lm_fairseq.utils.training_log import seconds_per_update
from mae_lm_fairseq.utils.versions import machine, versions

COMMON_MASKING = {
    "mask_prob": 0.15,
    "leave_unmasked_prob": 0.0,
    "random_token_prob": 0.0,
    "mask_whole_words": False,
    "seed": 1,
}
"""Masking of the validation text for every variant."""

REPORT = """\
# {title}

{table}

- Loss: mean cross-entropy in nats per masked token of the validation text, 15 % of which is replaced by `<mask>`, at
  the same positions for every row.
- Seconds per update: median over the log, on {threads} core{plural} per run with {jobs} run{jobs_plural} at a time; in
  parentheses, the ratio to the first row.
- Parameters: of the network in pretraining, and of the encoder that is kept, in millions.

Command:

```bash
{command}
```

with {versions}.
"""


@dataclass(frozen=True)
class Variant:
    """A row of the table.

    Args:
        title: title of the row.
        architecture: architecture to train.
        options: options of ``fairseq-train`` that differ from the recipe.
    """

    title: str
    architecture: str
    options: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """Name of the run's directory."""
        return "_".join((self.architecture, *(option.removeprefix("--") for option in self.options)))


def presets(size: str) -> list[Variant]:
    """Return RoBERTa, MAE-LM, 3ML with its own and with MAE-LM's masking rate, and mask-later for each layer."""
    layers = _config("mae_lm", size).encoder_layers
    later = [
        Variant(f"mask later, before layer {below + 1} of {layers}", f"mae_lm_mask_later_{size}", _join_at(below))
        for below in range(1, layers)
    ]
    as_others = ("--mask-prob", "0.15")
    return [
        Variant("RoBERTa", f"mae_lm_roberta_{size}"),
        Variant("MAE-LM", f"mae_lm_{size}"),
        Variant("3ML-self, 50 % masked", f"mae_lm_3ml_self_{size}"),
        Variant("3ML-cross, 50 % masked", f"mae_lm_3ml_cross_{size}"),
        Variant("3ML-self, 15 % masked", f"mae_lm_3ml_self_{size}", as_others),
        Variant("3ML-cross, 15 % masked", f"mae_lm_3ml_cross_{size}", as_others),
        *later,
    ]


def ablations(size: str) -> list[Variant]:
    """Return the ablations of the MAE-LM paper (Meng et al., ICLR 2024, arXiv 2302.02060) and other masking."""
    architecture, config = f"mae_lm_{size}", _config("mae_lm", size)
    rows = {"MAE-LM": ()}
    rows |= {
        f"{fraction:.0%} of the [MASK] tokens in the encoder": ("--mask-in-encoder", str(fraction))
        for fraction in (0.25, 0.5, 0.75, 1.0)
    }
    rows["all [MASK] tokens in the encoder, reset before the decoder"] = (
        "--mask-in-encoder",
        "1.0",
        "--reset-mask-states",
    )
    rows["misaligned positions"] = ("--renumber-visible",)
    rows["no relative positions"] = ("--relative-buckets", "0", "--decoder-relative-buckets", "0")
    rows |= {
        f"{layers} decoder layers": ("--decoder-layers", str(layers))
        for layers in (2, 4, 6, 8)
        if layers != config.decoder_layers
    }
    rows |= {
        f"decoder of {ratio[0]}/{ratio[1]} the hidden size": _decoder_width(config, *ratio)
        for ratio in ((2, 3), (4, 3))
    }
    rows |= {f"decoder attention {kind}": ("--decoder-attention", kind) for kind in ("cross", "self_cross")}
    rows |= {f"{fraction:.0%} masked": ("--mask-prob", str(fraction)) for fraction in (0.3, 0.4, 0.5, 0.6, 0.8)}
    rows["80/10/10 corruption"] = ("--leave-unmasked-prob", "0.1", "--random-token-prob", "0.1")
    rows["whole words masked"] = ("--mask-whole-words",)
    return [Variant(title, architecture, options) for title, options in rows.items()]


def compare(
    data: Path,
    variants: Sequence[Variant],
    updates: int,
    out: Path,
    title: str,
    command: str,
    jobs: int = 1,
    threads: int = 1,
) -> list[dict]:
    """Train the variants that are not finished, and write ``table.md`` and ``table.json`` to ``out``.

    Args:
        data: the data-bin.
        variants: the rows.
        updates: number of updates per run.
        out: output directory.
        title: title of the table.
        command: the command that creates the table, to be printed with it.
        jobs: number of parallel runs.
        threads: number of threads per run.

    Returns:
        The rows of ``table.json``.

    Raises:
        UserError: if a run failed, or ``out`` has runs of other options, data or machines, or cannot be written.
    """
    measured = {"jobs": jobs, "threads": threads, "machine": machine()}  # times are compared
    reserve(out, {"title": title, "updates": updates, "data": fingerprint(data), **measured})
    runs = [_run(variant, data, updates, out) for variant in variants]
    results = run_all(runs, jobs=jobs, threads=threads)
    rows = [asdict(variant) | result for variant, result in zip(variants, results, strict=True)]
    used = versions()
    write_json(out / "table.json", {"title": title, "versions": used, "command": command, "rows": rows})
    report = REPORT.format(
        title=title,
        table=table_of(rows),
        threads=threads,
        plural="s" * (threads > 1),
        jobs=jobs,
        jobs_plural="s" * (jobs > 1),
        command=command,
        versions=", ".join(f"{name} {number}" for name, number in used.items()),
    )
    write_text(out / "table.md", report)
    return rows


def _config(preset: str, size: str) -> MaskedAutoencoderConfig:
    if size not in SIZES:
        raise UserError(f"--size {size}: choose one of {', '.join(SIZES)}")
    return preset_config(preset, size)


def _join_at(layer: int) -> tuple[str, ...]:
    return ("--mask-join-layer", str(layer))


def _decoder_width(config: MaskedAutoencoderConfig, numerator: int, denominator: int) -> tuple[str, ...]:
    """Return options for a decoder of about the given fraction of the encoder's hidden size.

    The result is 512 and 1024 for 768, as in the paper. Heads have the same size as the encoder's, and the feed-forward
    size keeps its ratio to the hidden size.
    """
    encoder = config.encoder
    heads = round(encoder.heads * numerator / denominator)
    dim = heads * encoder.dim // encoder.heads
    widths = {"embed-dim": dim, "ffn-embed-dim": dim * encoder.ffn_dim // encoder.dim, "attention-heads": heads}
    return tuple(word for name, value in widths.items() for word in (f"--decoder-{name}", str(value)))


def _run(variant: Variant, data: Path, updates: int, out: Path) -> Run:
    folder = out / "runs" / variant.name
    checkpoints = folder / "checkpoints"
    warmup = min(recipe(variant.architecture)["warmup"].value, updates // 4)
    options = (*variant.options, "--disable-validation", "--log-interval", str(min(10, updates)))
    command = training_command(variant.architecture, data, checkpoints, updates, warmup, max(1, updates // 5), *options)

    def read_result(run: Run) -> dict:
        model, task = inspection.load(checkpoints / "checkpoint_last.pt", data, **COMMON_MASKING)
        return {
            "updates": updates,
            "valid_loss": round(inspection.masked_loss(model, task), 4),
            "seconds_per_update": round(seconds_per_update(run.log), 4),
            "parameters": sum(weight.numel() for weight in model.parameters()),
            "encoder_parameters": sum(weight.numel() for weight in model.autoencoder.encoder.parameters()),
        }

    return Run(variant.name, command, folder / "result.json", read_result, updates_done(updates))


def table_of(rows: Sequence[dict]) -> str:
    """Format the rows of ``table.json`` as Markdown."""
    header = ["", "options", "updates", "validation loss", "seconds per update", "parameters (M)"]
    first = rows[0]["seconds_per_update"]
    cells = [
        [
            row["title"],
            f"`{' '.join(('--arch', row['architecture'], *row['options']))}`",
            f"{row['updates']:,}",
            f"{row['valid_loss']:.3f}",
            f"{row['seconds_per_update']:.3f} ({row['seconds_per_update'] / first:.2f} x)",
            f"{row['parameters'] / 1e6:.2f} / {row['encoder_parameters'] / 1e6:.2f}",
        ]
        for row in rows
    ]
    return markdown_table(header, cells)
