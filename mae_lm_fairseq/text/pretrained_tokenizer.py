"""The tokenizer of a pretraining run, read from its data-bin, for preparing data of other tasks."""

import os
from pathlib import Path

from mae_lm_fairseq.text.data_bin import DICTIONARY, dictionary_fingerprint
from mae_lm_fairseq.text.dictionary import read_symbols
from mae_lm_fairseq.text.manifest import MANIFEST, Manifest
from mae_lm_fairseq.text.tokenizer import Tokenizer
from mae_lm_fairseq.text.tokenizer_files import NAMES, find_tokenizer
from mae_lm_fairseq.utils.errors import UserError


def open_tokenizer(data_bin: Path, checkpoint: str | Path | None = None, dictionary: str | None = None) -> Tokenizer:
    """Return the tokenizer of a data-bin.

    Args:
        data_bin: directory with a tokenizer, dict.txt and, unless it was made by hand, manifest.json.
        checkpoint: checkpoint to fine-tune, for the error message.
        dictionary: fingerprint of the dictionary that the checkpoint was trained with, or None if unknown.

    Raises:
        UserError: if a file is missing, or the files do not match each other or the checkpoint.
    """
    tokenizer = find_tokenizer(data_bin)
    if tokenizer is None or not os.path.isfile(data_bin / DICTIONARY):
        missing = NAMES if tokenizer is None else DICTIONARY
        raise UserError(
            f"--tokenizer {data_bin}: has no {missing}; use the data-bin that the checkpoint was pretrained on"
        )
    if list(read_symbols(data_bin / DICTIONARY)[:-1]) != tokenizer.symbols:
        raise UserError(
            f"--tokenizer {data_bin}: {DICTIONARY} does not match {tokenizer.path.name}; restore the right one"
        )
    fingerprint = dictionary_fingerprint(tokenizer.symbols)
    if (data_bin / MANIFEST).exists():
        manifest = Manifest.read(data_bin / MANIFEST)
        if (manifest.tokenizer_sha256, manifest.dictionary_sha256) != (tokenizer.fingerprint, fingerprint):
            raise UserError(
                f"--tokenizer {data_bin}: {tokenizer.path.name} is not the one that the data-bin was prepared with "
                f"(see {MANIFEST}); restore that one"
            )
    if dictionary not in (None, fingerprint):
        raise UserError(
            f"--tokenizer {data_bin}: not the tokenizer of {checkpoint}, which was trained with another dictionary; "
            "use the data-bin that it was pretrained on"
        )
    return tokenizer
