"""Estimate what pretraining an architecture costs, beside the RoBERTa preset of its size with 15 % of the text masked.

Sequences are assumed to be full. FLOPs are those of matrix products, by formula. Memory is that of tensors, counted
while the step runs on fake tensors with unfused attention; a fused kernel needs less, the allocator and CUDA
itself some more. MFU is the fraction of the data sheet's FLOP/s that the run reaches: 25 % is what NVIDIA's own
BERT-large at 512 tokens reached on a V100 (30.1 sequences of 1.02 TFLOP per second, DeepLearningExamples, 2019). FLOPs
and seconds that scripts/benchmark.py writes give yours. The exchange of gradients is assumed to hide behind the
computation.

Example:
    mae-lm plan mae_lm_base --devices 8 --device-kind a100-80 --precision bf16
"""

import argparse
import contextlib
import json
from dataclasses import fields

from mae_lm_fairseq.core.config import ARCHITECTURES
from mae_lm_fairseq.cost.devices import DEVICES
from mae_lm_fairseq.cost.planned_run import PRECISIONS, Run
from mae_lm_fairseq.training.settings import recipe

HELP = {
    "mask_prob": ("P", "fraction of the tokens that are masked and predicted (default: the recipe's)"),
    "mask_in_encoder": ("F", "fraction of the [MASK] tokens that the encoder sees, as in fairseq-train"),
    "vocab_size": ("N", "size of the dictionary, special tokens included"),
    "tokens_per_sample": ("N", "sequence length in tokens"),
    "batch_size": ("N", "sequences per batch of one device"),
    "update_freq": ("N", "batches that each device accumulates per update"),
    "tokens": (
        "N",
        "training text in total, repetitions included, such as 131e9 (default: BERT's 1,000,000 updates of "
        "256 sequences)",
    ),
    "devices": ("N", "number of accelerators"),
    "device_kind": ("K", f"one of {', '.join(DEVICES)}"),
    "precision": ("P", f"one of {', '.join(PRECISIONS)}, after fairseq-train's --bf16, --fp16, --autocast bf16"),
    "mfu": ("F", "fraction of the accelerator's FLOP/s that is reached, see above"),
}


def count(text: str) -> int:
    """Parse an integer, also written as 131e9."""
    with contextlib.suppress(ValueError):
        if float(text).is_integer():
            return int(float(text))
    raise argparse.ArgumentTypeError(f"{text} is not an integer")


def parser() -> argparse.ArgumentParser:
    """Return the argument parser, with an option for each field of :class:`Run`."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("preset", metavar="PRESET", help=f"one of {', '.join(ARCHITECTURES)}")
    for field in fields(Run):
        if field.name in HELP:
            metavar, text = HELP[field.name]
            kind = count if field.type is int else field.type
            parser.add_argument(
                f"--{field.name.replace('_', '-')}",
                type=kind,
                default=argparse.SUPPRESS if field.name == "mask_prob" else field.default,
                metavar=metavar,
                help=text.replace("%", "%%") + " (default: %(default)s)" * ("(default:" not in text),
            )
    parser.add_argument("--checkpoint-activations", action="store_true", help="as in fairseq-train")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    return parser


def main(argv: list[str] | None = None) -> None:
    """Run the command."""
    arguments = vars(parser().parse_args(argv))
    from mae_lm_fairseq.cost.planner import plan
    from mae_lm_fairseq.cost.report import as_json, table

    as_data = arguments.pop("json")
    run = Run(**{"mask_prob": recipe(arguments["preset"])["mask_prob"].value, **arguments})
    plans = plan(run), plan(run.roberta())
    print(json.dumps(as_json(*plans), indent=2) if as_data else table(*plans))
