"""Turn raw text into a tokenizer, dict.txt and a data-bin.

Text is UTF-8: plain, .gz or .xz. Documents are separated by blank lines, and each file starts a new document.

Examples:
    mae-lm prepare --train train.txt --valid valid.txt --vocab-size 16000 --destdir data-bin
    mae-lm prepare --train train.txt --valid valid.txt --tokenizer byte-bpe --vocab-size 16000 --destdir data-bin
"""

import argparse
import os
import signal
import sys

from mae_lm_fairseq.text.manifest import Manifest
from mae_lm_fairseq.text.preparation import SAMPLE_BYTES, Options, prepare
from mae_lm_fairseq.text.tokenizer_training import DEFAULT_KIND, TRAINED_KINDS
from mae_lm_fairseq.utils.errors import UserError


def parser() -> argparse.ArgumentParser:
    """Return the argument parser; its names are those of ``Options``."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    text = "text files, and directories of text files (hidden files are ignored)"
    add("--train", nargs="+", required=True, metavar="PATH", help=text)
    add("--valid", nargs="+", required=True, metavar="PATH", help=text)
    add("--destdir", required=True, metavar="DIR", help="directory for the data-bin; no file is overwritten")
    add(
        "--vocab-size",
        type=int,
        metavar="N",
        help="train a tokenizer of N subwords, including <unk>, <s> and </s>, on a sample of at most "
        f"{SAMPLE_BYTES // 10**6} MB of the training text; fairseq's dictionary also has <pad> and <mask>, so the "
        "model's embedding table has N + 2 rows",
    )
    add(
        "--tokenizer",
        metavar="KIND_OR_PATH",
        help=f"kind of tokenizer to train: {', '.join(TRAINED_KINDS)} (default: {DEFAULT_KIND}); or an existing one: a "
        "sentencepiece model, a tokenizer.json, a directory of Hugging Face, or a directory with GPT-2's encoder.json "
        "and vocab.bpe and fairseq's dict.txt",
    )
    add("--sentencepiece-model", metavar="FILE", help="another name for --tokenizer FILE")
    add(
        "--character-coverage",
        type=float,
        default=0.99999,
        metavar="FRACTION",
        help="fraction of the text's characters that the trained model knows; lower it for text with thousands of rare "
        "characters, which then become <unk> (default: %(default)s)",
    )
    add(
        "--max-unk-rate",
        type=float,
        default=0.001,
        metavar="FRACTION",
        help="stop if more than this fraction of a split's tokens is <unk> (default: %(default)s)",
    )
    workers = os.cpu_count() or 1
    add("--workers", type=int, default=workers, metavar="N", help="number of worker processes (default: %(default)s)")
    return parser


def report(manifest: Manifest) -> str:
    """Format the statistics of the splits as a table."""
    head = f"{'':6}{'documents':>12}{'lines':>14}{'tokens in':>16}{'tokens out':>16}{'<unk>':>12}{'rate':>10}"
    rows = [
        f"{name:6}{s.documents:12,}{s.lines:14,}{s.tokens_in:16,}{s.tokens_out:16,}{s.unk:12,}{s.unk_rate:10.4%}"
        for name, s in manifest.splits.items()
    ]
    return "\n".join([head, *rows])


def main(argv: list[str] | None = None) -> None:
    """Run the command.

    Raises:
        UserError: on any error that the user can fix.
    """
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        options = Options(**vars(parser().parse_args(argv)))
        print(report(prepare(options)))
        print(f"ready for fairseq-train: {options.destdir}")
    except OSError as error:
        raise UserError(f"{error.filename or options.destdir}: {error.strerror or error}") from None
    except KeyboardInterrupt:
        sys.exit("error: interrupted; nothing was left behind")
    finally:
        signal.signal(signal.SIGTERM, before)
