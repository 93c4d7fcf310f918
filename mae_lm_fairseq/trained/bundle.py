"""Bundle: a directory with everything that a model needs, in files that cannot run code.

The files are those of a ``transformers`` directory.
"""

from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

from mae_lm_fairseq.text.data_bin import DICTIONARY
from mae_lm_fairseq.text.dictionary import write_symbols
from mae_lm_fairseq.text.tokenizer import BOS, EOS, PAD
from mae_lm_fairseq.trained.checkpoint_file import save_safetensors
from mae_lm_fairseq.trained.original import CONFIG
from mae_lm_fairseq.trained.reading import MODEL_TYPE, WEIGHTS, Pretrained
from mae_lm_fairseq.trained.token_order import TokenOrder, token_order
from mae_lm_fairseq.trained.validation import ADDED, tied_names
from mae_lm_fairseq.utils.directories import new_directory
from mae_lm_fairseq.utils.files import write_json
from mae_lm_fairseq.utils.hashes import write_hashes

UNCOMPARED = ("README.md",)
"""Files of a bundle without a hash: people edit the model card, and no program reads it."""


def write_bundle(
    pretrained: Pretrained, out: str | Path, complete: Callable[[Pretrained, Path], None] | None = None
) -> None:
    """Write a bundle. It appears complete or not at all.

    Weights keep their precision. Tied weights are stored once. ``SHA256SUMS`` has the hashes of the files. ``complete``
    adds further files, given the model and the directory before it appears.

    Raises:
        UserError: if the directory exists already or cannot be written.
    """
    order = token_order(pretrained.tokenizer, len(pretrained.symbols))
    stored = dict(pretrained.weights)
    for name in tied_names(pretrained.config, stored):
        stored.pop(name, None)
    stored = order.exported(stored, pretrained.config)
    weights = {name: weight.contiguous() for name, weight in stored.items()}
    with new_directory(Path(out)) as directory:
        save_safetensors(weights, directory / WEIGHTS)
        write_json(directory / CONFIG, _description(pretrained, order))
        write_symbols(pretrained.symbols, directory / DICTIONARY)
        if pretrained.tokenizer is not None:
            pretrained.tokenizer.save(directory)
        if pretrained.original is not None:
            pretrained.original.write(directory)
        if complete is not None:
            complete(pretrained, directory)
        write_hashes(directory, without=UNCOMPARED)


def _description(pretrained: Pretrained, order: TokenOrder) -> dict:
    network = asdict(pretrained.config)
    for name, default in ADDED:
        if network[name] == default:
            del network[name]
    return {
        "model_type": MODEL_TYPE,
        "architectures": ["MAELMForMaskedLM"],
        "network": network,
        "vocab_size": len(pretrained.symbols),
        "bos_token_id": order[BOS],
        "pad_token_id": order[PAD],
        "eos_token_id": order[EOS],
        "mask_token_id": order[pretrained.mask],
        "dtype": pretrained.precision,
        "tokenizer": pretrained.tokenizer and pretrained.tokenizer.FILES[0],
        "about": pretrained.about.to_json(),
    }
