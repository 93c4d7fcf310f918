"""Export a pretrained or fine-tuned model for Hugging Face's transformers.

The encoder becomes a stock MPNet or RoBERTa, or the class that it was imported from, without code of this package:
AutoModel and AutoTokenizer load the directory, which also has a model card. It is written only if token ids, hidden
states and predictions are the original's on text of several scripts. The decoder is not exported; mae-lm bundle keeps
it.

Examples:
    mae-lm export bundles/mae_lm --out mae-lm-hf
    mae-lm export checkpoints/mae_lm/checkpoint_last.pt --data-bin data-bin --out mae-lm-hf
"""

import argparse
from pathlib import Path

from mae_lm_fairseq.text.text_samples import read_text
from mae_lm_fairseq.utils.arguments import add_ema
from mae_lm_fairseq.utils.errors import UserError, needs_transformers
from mae_lm_fairseq.utils.logging import configure_logging


def parser() -> argparse.ArgumentParser:
    """Return the argument parser."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", metavar="BUNDLE_OR_CHECKPOINT", help="bundle, or checkpoint of fairseq-train")
    parser.add_argument("--data-bin", metavar="DIR", help="data-bin of a checkpoint, with dictionary and tokenizer")
    add_ema(parser)
    parser.add_argument("--out", metavar="DIR", type=Path, required=True, help="output directory, which must not exist")
    parser.add_argument("--head", metavar="NAME", help="head to export, if the model has several")
    parser.add_argument("--text", metavar="FILE", type=Path, help="text file whose lines are also compared")
    return parser


def main(argv: list[str] | None = None) -> None:
    """Export the model and print a summary."""
    arguments = parser().parse_args(argv)
    from mae_lm_fairseq.checkpoints.reading import read

    configure_logging()
    with needs_transformers():
        from mae_lm_fairseq.huggingface.exporter import export_stock
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()
    pretrained = read(arguments.model, arguments.data_bin, arguments.ema)
    if arguments.text and pretrained.tokenizer is None:
        raise UserError(
            f"--text {arguments.text}: {arguments.model} has no tokenizer, and is compared on random ids; remove --text"
        )
    lines = [line for line in read_text(arguments.text) if line] if arguments.text else []
    written = export_stock(pretrained, arguments.out, arguments.head, lines)
    print(f"{arguments.out}: {written}, compared with the original")
