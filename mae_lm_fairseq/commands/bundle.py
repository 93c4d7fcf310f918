"""Make a bundle of a checkpoint: one directory with weights, configuration, dictionary and tokenizer.

Every command and MAELMModel.from_pretrained(DIR) load it anywhere; so does AutoModelForMaskedLM of transformers, once
mae_lm_fairseq.huggingface.modeling is imported. The data-bin is that of pretraining, or one with the same dict.txt and
tokenizer.

Example:
    mae-lm bundle checkpoints/mae_lm/checkpoint_last.pt --data-bin data-bin --out bundles/mae_lm
"""

import argparse
from pathlib import Path

from mae_lm_fairseq.utils.arguments import add_ema
from mae_lm_fairseq.utils.errors import UserError
from mae_lm_fairseq.utils.logging import configure_logging


def parser() -> argparse.ArgumentParser:
    """Return the argument parser."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkpoint", type=Path, metavar="CHECKPOINT", help="checkpoint of fairseq-train")
    parser.add_argument(
        "--data-bin", type=Path, required=True, metavar="DIR", help="data-bin with dictionary and tokenizer"
    )
    add_ema(parser)
    parser.add_argument(
        "--out", type=Path, required=True, metavar="DIR", help="directory of the bundle, which must not exist"
    )
    return parser


def main(argv: list[str] | None = None) -> None:
    """Run the command."""
    arguments = parser().parse_args(argv)
    from mae_lm_fairseq.checkpoints.reading import read_checkpoint
    from mae_lm_fairseq.huggingface.bundle import write_bundle
    from mae_lm_fairseq.text.tokenizer_files import NAMES

    configure_logging()
    pretrained = read_checkpoint(arguments.checkpoint, arguments.data_bin, arguments.ema)
    if pretrained.tokenizer is None:
        raise UserError(f"{arguments.data_bin} has no tokenizer ({NAMES}); put the data's tokenizer there")
    write_bundle(pretrained, arguments.out)
    print(f"{arguments.out}: {pretrained.about['architecture']} after {pretrained.about['updates']} updates")
