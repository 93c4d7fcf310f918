"""Options of a preparation, and their check."""

import os
from argparse import ArgumentTypeError
from collections.abc import Collection
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated

from mae_lm_fairseq.text.corpus import RecordOptions
from mae_lm_fairseq.text.data_bin import DICTIONARY
from mae_lm_fairseq.text.manifest import MANIFEST
from mae_lm_fairseq.text.tokenizer_files import TOKENIZER_FILES
from mae_lm_fairseq.text.tokenizer_training import DEFAULT_KIND, TRAINED_KINDS
from mae_lm_fairseq.utils.command_line import Argument, Count, Directory, Options
from mae_lm_fairseq.utils.errors import UserError
from mae_lm_fairseq.utils.workers import available_cores

PRODUCTS = (DICTIONARY, "train.bin", "valid.bin", "train.idx", "valid.idx", MANIFEST)
"""Files of a data-bin beside the tokenizer, in the order in which they are moved there; the last one completes it."""
_MACHINES = ("workers", "part", "scheduler")


def _parse_fraction(text: str) -> tuple[int, int]:
    number, count = map(int, text.split("/"))
    if not 1 <= number <= count:
        raise ArgumentTypeError(f"{text}: I must be from 1 to N")
    return number, count


@dataclass(frozen=True)
class PreparationOptions(Options):
    """Options of a preparation.

    Attributes:
        train, valid: files, globs, and directories (hidden files are ignored).
        destdir: directory for the data-bin; no file is overwritten.
        vocab_size: train a tokenizer of N subwords, including <unk>, <s> and </s>, on a sample of some 50 MB of the
            training text; fairseq's dictionary also has <pad> and <mask>, so the model's embedding table has N + 2
            rows.
        tokenizer: kind of tokenizer to train: sentencepiece-bpe, sentencepiece-unigram, byte-bpe (default:
            sentencepiece-bpe); or an existing one: a sentencepiece model, a tokenizer.json, a directory of Hugging
            Face, a data-bin or bundle, or a directory with GPT-2's encoder.json and vocab.bpe and fairseq's dict.txt.
        text_field: field with the text, in files with records.
        skip_malformed: skip and count malformed records instead of stopping.
        character_coverage: fraction of the text's characters that the trained model knows (byte-bpe knows all); lower
            it for text with thousands of rare characters, which then become <unk>.
        max_unk_rate: stop if more than this fraction of a split's tokens is <unk>.
        workers: number of worker processes (default: number of available cores).
        shards: spread the training documents over N data-bins DIR/shard0, DIR/shard1, ..., which fairseq-train reads in
            turn, one in each epoch (at most 256: so many pairs of files are open at the same time).
        part: prepare every N-th part, from part I, in DIR/parts; run it for I from 1 to N, on any machines that share a
            file system, then run without --part to merge.
        scheduler: encode on the Dask cluster of this scheduler, such as tcp://host:8786.
    """

    train: Annotated[tuple[str, ...], Argument("PATH")]
    valid: Annotated[tuple[str, ...], Argument("PATH")]
    destdir: Directory
    vocab_size: Count | None = None
    tokenizer: Annotated[str, Argument("KIND_OR_PATH")] | None = None
    text_field: Annotated[str, Argument("NAME")] = "text"
    skip_malformed: bool = False
    character_coverage: Annotated[float, Argument("FRACTION", at_least=0.98, at_most=1)] = 0.99999
    max_unk_rate: Annotated[float, Argument("FRACTION", at_least=0, at_most=1)] = 0.001
    workers: Count | None = None
    shards: Annotated[int, Argument("N", at_least=1, at_most=256)] | None = None
    part: Annotated[tuple, Argument("I/N", parse=_parse_fraction)] | None = None
    scheduler: Annotated[str, Argument("ADDRESS")] | None = None

    @property
    def kind(self) -> str | None:
        """Kind of tokenizer to train; None to use an existing one."""
        kind = DEFAULT_KIND if self.tokenizer is None else self.tokenizer
        return kind if kind in TRAINED_KINDS else None

    @property
    def processes(self) -> int:
        """Number of processes that encode; by default, as many as cores that this process may use."""
        return self.workers or available_cores()

    @property
    def data_bins(self) -> list[Path]:
        """Directories of the data-bins."""
        if self.shards is None:
            return [self.destdir]
        return [self.destdir / f"shard{number}" for number in range(self.shards)]

    @property
    def products(self) -> list[Path]:
        """Paths of all files that a preparation may write."""
        names = (*TOKENIZER_FILES, *PRODUCTS)
        return [*(data_bin / name for data_bin in self.data_bins for name in names), self.destdir / MANIFEST]

    @property
    def record_options(self) -> RecordOptions:
        """How records are read."""
        return RecordOptions(self.text_field, self.skip_malformed)

    def recorded(self) -> dict[str, object]:
        """Return the options for the manifest, except those that choose machines and those that are not set."""
        recorded = {}
        for name in (field.name for field in fields(self)):
            value = getattr(self, name)
            if name not in _MACHINES and value is not None and value is not False:
                recorded[name] = value
        return recorded | {"destdir": str(self.destdir)}

    def check(self, ours: Collection[Path] = ()) -> None:
        """Check that there is one tokenizer, and that no file is overwritten but those that this command has written.

        Raises:
            UserError: if that is not so.
        """
        if self.vocab_size is None and self.kind:
            raise UserError("--vocab-size is missing; give it, or an existing tokenizer with --tokenizer")
        if self.vocab_size is not None and self.kind is None:
            raise UserError(f"--vocab-size: has no effect with --tokenizer {self.tokenizer}; remove it")
        tokenizer = self.tokenizer if self.kind is None and os.path.exists(self.tokenizer) else None
        for path in self.products:
            is_tokenizer = tokenizer and os.path.exists(path) and path.samefile(tokenizer)
            if os.path.lexists(path) and path not in ours and not is_tokenizer:
                raise UserError(f"{path}: exists already; choose another --destdir, or remove it")
