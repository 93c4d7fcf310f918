"""A bundle: one directory with all that a pretrained network needs, of files that cannot run code."""

import json
import os
import shutil
import tempfile
from dataclasses import asdict
from pathlib import Path

from safetensors.torch import save_file

from mae_lm_fairseq.data.dictionary import write_symbols
from mae_lm_fairseq.errors import UserError
from mae_lm_fairseq.export.fitting import tied_names
from mae_lm_fairseq.export.pretrained import CONFIG, DICTIONARY, FORMAT, TOKENIZER, WEIGHTS, Pretrained


def write_bundle(pretrained: Pretrained, directory: str | Path):
    """Write a bundle, for :func:`~mae_lm_fairseq.export.pretrained.read_bundle`. It appears complete or not at all.

    The weights are written in the precision that they have, tied ones once.

    Raises:
        UserError: the directory is there already, or cannot be written.
    """
    directory = Path(directory)
    if directory.exists():
        raise UserError(f"{directory} is there already; choose another --out, or take it away first")
    try:
        directory.parent.mkdir(parents=True, exist_ok=True)
        temporary = Path(tempfile.mkdtemp(prefix=f".{directory.name}.", dir=directory.parent))
    except OSError as error:
        raise UserError(f"{directory}: {error.strerror}") from None
    try:
        _write_files(pretrained, temporary)
        temporary.chmod(0o755)  # mkdtemp lets nobody else in, and safetensors nobody else read
        (temporary / WEIGHTS).chmod(0o644)
        os.rename(temporary, directory)
    except OSError as error:
        raise UserError(f"{directory}: {error.strerror}") from None
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _write_files(pretrained: Pretrained, directory: Path):
    tied = tied_names(pretrained.config, pretrained.weights)
    weights = {name: weight.contiguous() for name, weight in pretrained.weights.items() if name not in tied}
    save_file(weights, directory / WEIGHTS, metadata={"format": "pt"})
    description = {"format": FORMAT, "network": asdict(pretrained.config), "about": pretrained.about}
    (directory / CONFIG).write_text(json.dumps(description, indent=2) + "\n", encoding="utf-8")
    write_symbols(pretrained.symbols, directory / DICTIONARY)
    if pretrained.sentencepiece is not None:
        (directory / TOKENIZER).write_bytes(pretrained.sentencepiece)
