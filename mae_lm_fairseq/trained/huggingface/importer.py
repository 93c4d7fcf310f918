"""Import of encoders from elsewhere."""

import shlex
from dataclasses import replace
from pathlib import Path

from mae_lm_fairseq.core.config import ARCHITECTURES, MaskJoin, preset_config
from mae_lm_fairseq.text.data_bin import dictionary_fingerprint
from mae_lm_fairseq.text.tokenizer_files import load_from_transformers
from mae_lm_fairseq.trained.checkpoint_file import content_errors
from mae_lm_fairseq.trained.conversion import architecture_of, completed, new_decoder
from mae_lm_fairseq.trained.huggingface.families import FAMILIES
from mae_lm_fairseq.trained.huggingface.foreign import read_fairseq, read_stock, read_wrapped
from mae_lm_fairseq.trained.huggingface.tokenizer import pair_differences
from mae_lm_fairseq.trained.original import MODULES, lost_settings, sentence_modules
from mae_lm_fairseq.trained.reading import Pretrained, check_task, transformers_type
from mae_lm_fairseq.trained.validation import PREDICTION, check_fit, head_names


def import_foreign(path: Path, preset: str, data_bin: Path | None = None, seed: int = 1) -> Pretrained:
    """Import an encoder into this package's network.

    The language model head is also imported. A decoder is new, see
    :func:`~mae_lm_fairseq.trained.conversion.new_decoder`. A model with a task head is imported as a fine-tuned
    model, without language model head and decoder.

    Args:
        path: ``transformers`` directory or fairseq checkpoint.
        preset: preset of the network around the encoder.
        data_bin: for a checkpoint, the directory of ``dict.txt``; None for the checkpoint's directory.
        seed: seed of the random weights.

    Raises:
        UserError: if a file is missing, damaged or could run code, or the encoder's computation differs from ours.
    """
    with content_errors(path):
        if path.is_dir():
            found = (read_stock if transformers_type(path) in FAMILIES else read_wrapped)(path, preset)
        else:
            found = read_fairseq(path, data_bin or path.parent, preset)
        config, weights, heads = found.config, found.weights, head_names(found.weights)
        check_fit(config, weights, len(found.symbols), is_part=not heads)
        check_task(found.about, weights)
    about = replace(
        found.about,
        architecture=f"{preset}_base",
        imported_from=f"{path.resolve().name}, {found.about.imported_from}",
        dictionary_sha256=dictionary_fingerprint(found.symbols),
    )
    if not heads:
        missing = {
            "decoder": config.decoder_layers > 0,
            "lm_head": not any(name.startswith(PREDICTION) for name in weights),
            "training with its [MASK] tokens": config.mask_join is MaskJoin.encoder or config.mask_states > 1,
        }
        about = replace(about, untrained=tuple(part for part, is_missing in missing.items() if is_missing))
        config, decoder = new_decoder(config, weights)
        weights = completed(config, weights | decoder, len(found.symbols), seed)
    return replace(found, config=config, weights=weights, about=about)


def network_options(pretrained: Pretrained) -> list[str]:
    """Return the options with which fairseq-train builds the same network."""
    architecture = architecture_of(pretrained)
    defaults = vars(preset_config(*ARCHITECTURES[architecture]))
    words = ["--arch", architecture]
    for name, value in vars(pretrained.config).items():
        if value != defaults[name]:
            words.append(f"--{name.replace('_', '-')}")
            words += [] if value is True else [str(getattr(value, "value", value))]
    return words


def notes(path: Path) -> list[str]:
    """Return what a user should know about the model imported from a ``transformers`` directory or a checkpoint."""
    if not path.is_dir():
        return []
    found = []
    if differences := pair_differences(load_from_transformers(path)):
        here = " and ".join(differences)
        found.append(f"pairs of texts: here {here}; single texts are computed exactly")
    return found + lost_of_sentences(path)


def lost_of_sentences(path: Path) -> list[str]:
    """Return a line for each part of a sentence encoder that an import does not keep."""
    _, modules = sentence_modules(path)
    names = [f"{path / MODULES}: {module}" for module in modules] + [str(path / name) for name in lost_settings(path)]
    return [f"{name} is not imported; vectors of sentences are computed without it" for name in names]


def usage(pretrained: Pretrained, bundle: Path) -> str:
    """Return what the bundle of an imported model can be used for."""
    if not head_names(pretrained.weights):
        words = ["--finetune-from-model", str(bundle), *network_options(pretrained)]
        return f"To train it with fairseq-train, add\n{shlex.join(words)}"
    predict = f"mae-lm predict {bundle} uses its task head; " if pretrained.about.task else ""
    return f"{predict}mae-lm adapt {bundle} trains its encoder further, without the task head"
