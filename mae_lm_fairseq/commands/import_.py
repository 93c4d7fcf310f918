"""Import an encoder, to pretrain it further, to fine-tune it, or to analyse it.

Reads a directory of Hugging Face's transformers with a model of the type bert, roberta, xlm-roberta, camembert, mpnet
or distilbert, or a checkpoint of fairseq's RoBERTa with its dict.txt. --out becomes a bundle, which every command takes
as a model, and which can be named as the tokenizer or data-bin. A decoder starts from random weights. mae-lm export
writes the class of transformers that the model came from. No code is run from the files that are read.

Example:
    mae-lm import ./roberta-base --out imported
"""

import argparse
import os
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

from mae_lm_fairseq.core.config import PRESETS
from mae_lm_fairseq.utils.errors import UserError, needs_transformers
from mae_lm_fairseq.utils.logging import configure_logging

if TYPE_CHECKING:  # it imports torch
    from mae_lm_fairseq.checkpoints.reading import Pretrained


def parser() -> argparse.ArgumentParser:
    """Return the argument parser."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "model", metavar="HF_DIR_OR_FAIRSEQ_CHECKPOINT", type=Path, help="directory or checkpoint to import"
    )
    parser.add_argument("--out", metavar="DIR", type=Path, required=True, help="output directory, which must not exist")
    parser.add_argument(
        "--preset",
        choices=PRESETS,
        default="mae_lm_roberta",
        help="preset of the network (default: %(default)s, which predicts as the original does; the decoder of others "
        "starts from random weights)",
    )
    parser.add_argument(
        "--data-bin",
        metavar="DIR",
        type=Path,
        help="directory of dict.txt, for a checkpoint (default: the checkpoint's)",
    )
    parser.add_argument("--seed", type=int, default=1, metavar="N", help="seed of the decoder's weights (default: 1)")
    return parser


def main(argv: list[str] | None = None) -> None:
    """Import the model and print what it can be used for."""
    arguments = parser().parse_args(argv)
    configure_logging()
    if not os.path.exists(arguments.model):
        raise UserError(f"{arguments.model} does not exist; a model of the Hugging Face hub must be downloaded first")
    with needs_transformers():
        from mae_lm_fairseq.huggingface.bundle import write_bundle
        from mae_lm_fairseq.huggingface.importer import import_foreign, notes
    pretrained = import_foreign(arguments.model, arguments.preset, arguments.data_bin, arguments.seed)
    write_bundle(pretrained, arguments.out)
    for note in notes(arguments.model):
        print(note)
    print(f"{arguments.out} is written. {_use(pretrained, arguments.out)}")


def _use(pretrained: "Pretrained", out: Path) -> str:
    """Return what a bundle can be used for."""
    from mae_lm_fairseq.checkpoints.validation import head_names
    from mae_lm_fairseq.huggingface.importer import network_options

    if not head_names(pretrained.weights):
        words = ["--finetune-from-model", str(out), *network_options(pretrained)]
        return f"To train it with fairseq-train, add\n{shlex.join(words)}"
    if pretrained.tokenizer is None:
        return "It has a task head and no tokenizer: MAELMModel.from_pretrained takes it, with token ids"
    predict = f"mae-lm predict {out} uses its task head; " if "task" in pretrained.about else ""
    return f"{predict}mae-lm adapt {out} trains its encoder further, without the task head"
