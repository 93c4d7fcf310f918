"""Turn raw text into a tokenizer, dict.txt and a data-bin.

Text is UTF-8. In plain text, blank lines separate documents, and each file starts a new document. In JSON lines
(.jsonl, .jsonlines, .ndjson, .json), CSV, TSV, Parquet and Arrow, a record is a document. All but Parquet and Arrow
may be compressed: .gz, .xz, .bz2, .zst.

Examples:
    mae-lm prepare --train train.txt --valid valid.txt --vocab-size 16000 --destdir data-bin
    mae-lm prepare --train train.txt --valid valid.txt --tokenizer byte-bpe --vocab-size 16000 --destdir data-bin
"""

import argparse
import os
import signal
import sys

from mae_lm_fairseq.text.manifest import Manifest
from mae_lm_fairseq.text.preparation import (
    CHARACTER_COVERAGE,
    LARGEST_SHARDS,
    MAX_UNK_RATE,
    SAMPLE_BYTES,
    Options,
    prepare,
)
from mae_lm_fairseq.text.preparation_in_parts import prepare_in_parts
from mae_lm_fairseq.text.tokenizer_training import DEFAULT_KIND, TRAINED_KINDS
from mae_lm_fairseq.utils.errors import UserError
from mae_lm_fairseq.utils.signals import handled_by


def parser() -> argparse.ArgumentParser:
    """Return the argument parser; its names are those of ``Options``."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    text = "files, globs, and directories (hidden files are ignored), also those that Hugging Face's datasets saved"
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
        "sentencepiece model, a tokenizer.json, a directory of Hugging Face, a data-bin or bundle, or a directory with "
        "GPT-2's encoder.json and vocab.bpe and fairseq's dict.txt",
    )
    add("--sentencepiece-model", metavar="FILE", help="another name for --tokenizer FILE")
    add(
        "--text-field",
        default="text",
        metavar="NAME",
        help="field with the text, in files with records (default: %(default)s)",
    )
    add("--skip-malformed", action="store_true", help="skip and count malformed records instead of stopping")
    add(
        "--character-coverage",
        type=float,
        default=CHARACTER_COVERAGE,
        metavar="FRACTION",
        help="fraction of the text's characters that the trained model knows (byte-bpe knows all); lower it for text "
        "with thousands of rare characters, which then become <unk> (default: %(default)s)",
    )
    add(
        "--max-unk-rate",
        type=float,
        default=MAX_UNK_RATE,
        metavar="FRACTION",
        help="stop if more than this fraction of a split's tokens is <unk> (default: %(default)s)",
    )
    add("--workers", type=int, metavar="N", help="number of worker processes (default: number of available cores)")
    add(
        "--shards",
        type=int,
        metavar="N",
        help="spread the training documents over N data-bins DIR/shard0, DIR/shard1, ..., which fairseq-train reads in "
        f"turn, one in each epoch (at most {LARGEST_SHARDS})",
    )
    add(
        "--part",
        type=_fraction,
        metavar="I/N",
        help="make only the I-th of N fractions of the parts, in DIR/parts; run it for I from 1 to N, on any machines "
        "that share a file system, then use --merge",
    )
    add("--merge", action="store_true", help="merge the parts that --part has made")
    add("--scheduler", metavar="ADDRESS", help="encode on the Dask cluster of this scheduler, such as tcp://host:8786")
    return parser


def _fraction(text: str) -> tuple[int, int]:
    """Parse I/N."""
    try:
        number, count = map(int, text.split("/"))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text}: must be I/N, such as 1/8") from None
    if not 1 <= number <= count:
        raise argparse.ArgumentTypeError(f"{text}: I must be from 1 to N")
    return number, count


def report(manifest: Manifest) -> str:
    """Format the statistics of the splits as a table."""
    columns = {
        "documents": 12,
        "lines": 14,
        "tokens in": 16,
        "tokens out": 16,
        "<unk>": 12,
        "rate": 10,
        "malformed": 12,
    }
    rows = [" " * 6 + "".join(f"{name:>{width}}" for name, width in columns.items())]
    for name, s in manifest.splits.items():
        counts = f"{s.documents:12,}{s.lines:14,}{s.tokens_in:16,}{s.tokens_out:16,}{s.unk:12,}"
        rows.append(f"{name:6}{counts}{s.unk_rate:10.4%}{s.malformed:12,}")
    return "\n".join(rows)


def _options(argv: list[str] | None) -> Options:
    given = vars(parser().parse_args(argv))
    for name in ("workers", "scheduler"):
        if given["merge"] and given[name] is not None:
            raise UserError(f"--{name} {given[name]}: does nothing with --merge, which encodes no text; remove it")
    if given["workers"] is None:
        given["workers"] = _available_cores()
    elif given["scheduler"] is not None:
        raise UserError(
            f"--workers {given['workers']}: does nothing with --scheduler, whose cluster has its own workers; remove it"
        )
    return Options(**given)


def _available_cores() -> int:
    """Return the number of cores that this process may use: those of its job, for example, not of the machine."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def main(argv: list[str] | None = None) -> None:
    """Run the command.

    Raises:
        UserError: on any error that the user can fix.
    """
    try:
        with handled_by(signal.default_int_handler, signal.SIGTERM):
            options = _options(argv)
            manifest = prepare_in_parts(options) if options.in_parts else prepare(options)
            if manifest is not None:
                print(report(manifest))
                print(f"ready for fairseq-train: {':'.join(map(str, options.data_bins))}")
    except OSError as error:
        raise UserError(f"{error.filename or options.destdir}: {error.strerror or error}") from None
    except KeyboardInterrupt as error:
        sys.exit(f"error: {str(error) or 'interrupted; nothing was left behind'}")
