"""Bundle: a directory with everything that a pretrained network needs, in files that cannot run code."""

import json
import shutil
from dataclasses import asdict
from pathlib import Path

from safetensors.torch import save_file

from mae_lm_fairseq.pretrained.reading import ALIGNMENT, CONFIG, FORMAT, WEIGHTS, Pretrained
from mae_lm_fairseq.pretrained.validation import tied_names
from mae_lm_fairseq.text.data_bin import DICTIONARY
from mae_lm_fairseq.text.dictionary import write_symbols
from mae_lm_fairseq.utils.files import new_directory


def write_bundle(pretrained: Pretrained, directory: str | Path):
    """Write a bundle, for :func:`~mae_lm_fairseq.pretrained.reading.read_bundle`. It appears complete or not at all.

    Weights keep their precision. Tied weights are stored once.

    Raises:
        UserError: if the directory exists already or cannot be written.
    """
    with new_directory(Path(directory)) as temporary:
        _write_files(pretrained, temporary)


def _write_files(pretrained: Pretrained, directory: Path):
    tied = tied_names(pretrained.config, pretrained.weights)
    weights = {name: weight.contiguous() for name, weight in pretrained.weights.items() if name not in tied}
    save_file(weights, directory / WEIGHTS, metadata={"format": "pt"})
    _align(directory / WEIGHTS)
    description = {"format": FORMAT, "network": asdict(pretrained.config), "about": pretrained.about}
    (directory / CONFIG).write_text(json.dumps(description, indent=2) + "\n", encoding="utf-8")
    if pretrained.tokenizer is not None:
        pretrained.tokenizer.save(directory)
    write_symbols(pretrained.symbols, directory / DICTIONARY)


def _align(path: Path):
    """Pad the header of a safetensors file with spaces, so that memory-mapped weights are aligned."""
    unaligned = path.rename(path.with_name("unaligned"))
    with open(unaligned, "rb") as source, open(path, "wb") as file:
        header = source.read(int.from_bytes(source.read(8), "little"))
        header += b" " * (-(8 + len(header)) % ALIGNMENT)
        file.write(len(header).to_bytes(8, "little") + header)
        shutil.copyfileobj(source, file, 1 << 20)
    unaligned.unlink()
