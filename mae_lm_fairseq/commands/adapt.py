"""Adapt a pretrained model to your text: pretrain it further with its own tokenizer, and measure the difference.

--model is a directory of Hugging Face's transformers, a bundle, or a checkpoint with its --data-bin. Writes
OUT/report.md, OUT/results.json, OUT/stock (for AutoModel and AutoTokenizer) and OUT/model (a bundle, with decoder and
head). Started again with the same options, it resumes. Arguments after -- are passed to fairseq-train and override its
options.

Example:
    mae-lm adapt --model ./roberta-base --train notes/*.txt --valid held-out.txt --out adapted
"""

import argparse
import sys
from pathlib import Path

from mae_lm_fairseq.utils.arguments import fraction, not_negative, positive, positive_number
from mae_lm_fairseq.utils.errors import UserError, needs_transformers
from mae_lm_fairseq.utils.logging import configure_logging


def parser() -> argparse.ArgumentParser:
    """Return the argument parser; its names are those of ``Options``."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--model", type=Path, required=True, metavar="PATH", help="the model to start from")
    add("--data-bin", type=Path, metavar="DIR", help="for a checkpoint: data-bin with its dictionary and tokenizer")
    text = "files, globs and directories, of all formats of mae-lm prepare"
    add("--train", nargs="+", required=True, metavar="PATH", help=f"text to train on: {text}")
    add("--valid", nargs="+", required=True, metavar="PATH", help="held-out text to measure on, in other files")
    add("--text-field", default="text", metavar="NAME", help="field of records with the text (default: %(default)s)")
    add("--out", type=Path, required=True, metavar="DIR", help="output directory")
    objectives = "mlm predicts in the encoder, mae_lm and 3ml in a decoder (default: the model's own, for models of "
    add("--objective", choices=("mlm", "mae_lm", "3ml"), help=f"{objectives}transformers mlm)")
    add("--updates", type=positive, default=1000, metavar="N", help="number of updates (default: %(default)s)")
    add(
        "--learning-rate",
        type=positive_number,
        default=1e-4,
        metavar="LR",
        help="maximum learning rate: rises for 6 %% of the updates, then falls to 0 (default: %(default)s)",
    )
    add("--batch-size", type=positive, default=8192, metavar="N", help="tokens per update (default: %(default)s)")
    add(
        "--tokens-per-sample",
        type=positive,
        metavar="N",
        help="maximum length of a sequence (default: the model's, at most 512)",
    )
    add(
        "--mask-prob",
        type=fraction,
        metavar="P",
        help="fraction of the tokens to predict (default: 0.15, and 0.5 for 3ml)",
    )
    add(
        "--freeze-encoder-updates",
        type=not_negative,
        default=0,
        metavar="N",
        help="train only decoder and head in the first N updates (default: %(default)s)",
    )
    add(
        "--layer-lr-decay",
        type=fraction,
        default=1.0,
        metavar="D",
        help="factor between the learning rate of an encoder layer and that of the layer above it (default: "
        "%(default)s)",
    )
    add("--seed", type=positive, default=1, metavar="N", help="seed of new weights, masks and order (default: 1)")
    return parser


def main(argv: list[str] | None = None) -> None:
    """Run the command."""
    words = sys.argv[1:] if argv is None else argv
    end = words.index("--") if "--" in words else len(words)
    options = vars(parser().parse_args(words[:end]))
    configure_logging()
    with needs_transformers():
        from mae_lm_fairseq.workflows.adaptation import adapt
        from mae_lm_fairseq.workflows.adaptation_training import Options
    from transformers.utils.logging import disable_progress_bar, set_verbosity_error

    from mae_lm_fairseq.utils.locks import directory_lock
    from mae_lm_fairseq.utils.signals import signals_as_errors

    disable_progress_bar()
    set_verbosity_error()  # about weights that other classes have
    for name in ("model", "out", "data_bin"):
        options[name] = options[name] and options[name].resolve()
    try:
        with signals_as_errors(), directory_lock(options["out"]):
            adapt(Options(**options, extra=words[end + 1 :]))
    except OSError as error:
        raise UserError(f"{error.filename or options['out']}: {error.strerror or error}") from None
    print(f"Report: {options['out'] / 'report.md'}   Model for transformers: {options['out'] / 'stock'}")
