"""Bundle: a directory with everything that a model needs, in files that cannot run code.

The files are those of a ``transformers`` directory.
"""

import shutil
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

from safetensors.torch import save_file

from mae_lm_fairseq.checkpoints.checkpoint_file import ALIGNMENT
from mae_lm_fairseq.checkpoints.original import CONFIG
from mae_lm_fairseq.checkpoints.reading import MODEL_TYPE, WEIGHTS, Pretrained
from mae_lm_fairseq.checkpoints.token_order import TokenOrder, token_order
from mae_lm_fairseq.checkpoints.validation import ADDED, tied_names, token_weights
from mae_lm_fairseq.text.data_bin import DICTIONARY
from mae_lm_fairseq.text.dictionary import write_symbols
from mae_lm_fairseq.text.tokenizer import BOS, EOS, PAD
from mae_lm_fairseq.utils.files import new_directory, write_json


def write_bundle(
    pretrained: Pretrained, out: str | Path, complete: Callable[[Pretrained, Path], None] | None = None
) -> None:
    """Write a bundle. It appears complete or not at all.

    Weights keep their precision. Tied weights are stored once. ``complete`` adds further files, given the model and the
    directory before it appears.

    Raises:
        UserError: if the directory exists already or cannot be written.
    """
    order = token_order(pretrained.tokenizer, len(pretrained.symbols))
    tied = tied_names(pretrained.config, pretrained.weights)
    stored = {name: weight for name, weight in pretrained.weights.items() if name not in tied}
    stored = order.exported(stored, token_weights(pretrained.config))
    weights = {name: weight.contiguous() for name, weight in stored.items()}
    with new_directory(Path(out)) as directory:
        save_file(weights, directory / WEIGHTS, metadata={"format": "pt"})
        _align(directory / WEIGHTS)
        write_json(directory / CONFIG, _description(pretrained, order))
        write_symbols(pretrained.symbols, directory / DICTIONARY)
        if pretrained.tokenizer is not None:
            pretrained.tokenizer.save(directory)
        if pretrained.original is not None:
            pretrained.original.write(directory)
        if complete is not None:
            complete(pretrained, directory)


def _description(pretrained: Pretrained, order: TokenOrder) -> dict:
    return {
        "model_type": MODEL_TYPE,
        "architectures": ["MAELMForMaskedLM"],
        "network": {name: value for name, value in asdict(pretrained.config).items() if (name, value) not in ADDED},
        "vocab_size": len(pretrained.symbols),
        "bos_token_id": order[BOS],
        "pad_token_id": order[PAD],
        "eos_token_id": order[EOS],
        "mask_token_id": order[pretrained.mask],
        "dtype": str(next(iter(pretrained.weights.values())).dtype).removeprefix("torch."),
        "tokenizer": pretrained.tokenizer and pretrained.tokenizer.FILES[0],
        "about": pretrained.about.to_json(),
    }


def _align(path: Path) -> None:
    """Pad the header of a safetensors file with spaces, so that memory-mapped weights are aligned."""
    unaligned = path.rename(path.with_name("unaligned"))
    with open(unaligned, "rb") as source, open(path, "wb") as file:
        header = source.read(int.from_bytes(source.read(8), "little"))
        header += b" " * (-(8 + len(header)) % ALIGNMENT)
        file.write(len(header).to_bytes(8, "little") + header)
        shutil.copyfileobj(source, file, 1 << 20)
    unaligned.unlink()
