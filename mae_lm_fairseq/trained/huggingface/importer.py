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
from mae_lm_fairseq.trained.validation import check_fit, has_prediction, head_names


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
        if not path.is_dir():
            model = read_fairseq(path, data_bin or path.parent, preset)
        elif transformers_type(path) in FAMILIES:
            model = read_stock(path, preset)
        else:
            model = read_wrapped(path, preset)
        heads = head_names(model.weights)
        check_fit(model.config, model.weights, len(model.symbols), is_part=not heads)
        check_task(model.about, model.weights)
    about = replace(
        model.about,
        architecture=f"{preset}_base",
        imported_from=f"{path.resolve().name}, {model.about.imported_from}",
        dictionary_sha256=dictionary_fingerprint(model.symbols),
        untrained=() if heads else _untrained(model),
    )
    if heads:
        return replace(model, about=about)
    config, decoder = new_decoder(model.config, model.weights)
    weights = completed(config, model.weights | decoder, len(model.symbols), seed)
    return replace(model, config=config, weights=weights, about=about)


def _untrained(model: Pretrained) -> tuple[str, ...]:
    """Return the parts of a pretrained model that an import has to add."""
    config = model.config
    parts = []
    if config.decoder_layers > 0:
        parts.append("decoder")
    if not has_prediction(model.weights):
        parts.append("lm_head")
    if config.mask_join is MaskJoin.encoder or config.mask_states > 1:
        parts.append("training with its [MASK] tokens")
    return tuple(parts)


def network_options(pretrained: Pretrained) -> list[str]:
    """Return the options with which fairseq-train builds the same network."""
    architecture = architecture_of(pretrained)
    defaults = vars(preset_config(*ARCHITECTURES[architecture]))
    words = ["--arch", architecture]
    for name, value in vars(pretrained.config).items():
        if value != defaults[name]:
            words.append(f"--{name.replace('_', '-')}")
            if value is not True:
                words.append(str(getattr(value, "value", value)))
    return words


def notes(path: Path) -> list[str]:
    """Return what a user should know about the model imported from a ``transformers`` directory or a checkpoint."""
    if not path.is_dir():
        return []
    lines = lost_of_sentences(path)
    differences = " and ".join(pair_differences(load_from_transformers(path)))
    if differences:
        lines.insert(0, f"pairs of texts: here {differences}; single texts are computed exactly")
    return lines


def lost_of_sentences(path: Path) -> list[str]:
    """Return a line for each part of a sentence encoder that an import does not keep."""
    _, modules = sentence_modules(path)
    names = [f"{path / MODULES}: {module}" for module in modules]
    names += [str(path / name) for name in lost_settings(path)]
    return [f"{name} is not imported; vectors of sentences are computed without it" for name in names]


def usage(pretrained: Pretrained, bundle: Path) -> str:
    """Return what the bundle of an imported model can be used for."""
    if not head_names(pretrained.weights):
        words = ["--finetune-from-model", str(bundle), *network_options(pretrained)]
        return f"To train it with fairseq-train, add\n{shlex.join(words)}"
    predict = f"mae-lm predict {bundle} uses its task head; " if pretrained.about.task else ""
    return f"{predict}mae-lm adapt {bundle} trains its encoder further, without the task head"
