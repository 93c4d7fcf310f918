"""Import of encoders from elsewhere."""

import shlex
from dataclasses import replace
from pathlib import Path

from torch import Tensor

from mae_lm_fairseq.checkpoints.conversion import architecture_of, completed, new_decoder
from mae_lm_fairseq.checkpoints.info import ModelInfo, WordTask
from mae_lm_fairseq.checkpoints.reading import Pretrained, check_task
from mae_lm_fairseq.checkpoints.validation import (
    NETWORK,
    check_fit,
    head_names,
    network_config,
    skeleton,
)
from mae_lm_fairseq.core.config import ARCHITECTURES, MaskedAutoencoderConfig, MaskJoin, preset_config
from mae_lm_fairseq.huggingface.foreign import ForeignModel, predicts, read_fairseq, read_stock
from mae_lm_fairseq.huggingface.names import FAIRSEQ, Part, names_of, to_ours
from mae_lm_fairseq.huggingface.task_classes import ANSWERS, SENTENCES, WORDS
from mae_lm_fairseq.huggingface.tokenizer import load_tokenizer, pair_differences
from mae_lm_fairseq.text.data_bin import dictionary_fingerprint
from mae_lm_fairseq.utils.errors import UserError


def import_foreign(path: Path, preset: str, data_bin: Path | None = None, seed: int = 1) -> Pretrained:
    """Import an encoder into this package's network.

    The language model head is imported, too, and a decoder is new, see
    :func:`~mae_lm_fairseq.checkpoints.conversion.new_decoder`. A model with a task head is imported as a fine-tuned
    model, without language model head and decoder.

    Args:
        path: ``transformers`` directory or fairseq checkpoint.
        preset: preset of the network around the encoder.
        data_bin: for a checkpoint, the directory of ``dict.txt``; None for the checkpoint's directory.
        seed: seed of the random weights.

    Raises:
        UserError: if a file is missing, damaged or could run code, the encoder's computation differs from ours, or a
            data-bin is given for a directory.
    """
    if path.is_dir() and data_bin is not None:
        raise UserError(f"--data-bin is for a checkpoint; {path} is a directory of transformers; remove the option")
    try:
        foreign = read_stock(path) if path.is_dir() else read_fairseq(path, data_bin or path.parent)
        config = network_config(vars(preset_config(preset, "base")) | foreign.values, path)
        parts, head = _parts(foreign, path)
        weights = foreign.order.restored(_under_our_names(foreign, config, parts, head, path))
    except (RuntimeError, IndexError) as error:  # of torch
        raise UserError(f"{path}: its weights have shapes that do not match each other") from error
    _check_shapes(weights, config, len(foreign.symbols), path)
    about = replace(
        foreign.about if head else ModelInfo(),
        architecture=f"{preset}_base",
        imported_from=f"{path.resolve().name}, {foreign.kind}",
        dictionary_sha256=dictionary_fingerprint(foreign.symbols),
    )
    if not head:
        is_new = config.mask_join is MaskJoin.encoder or config.mask_states > 1
        missing = {
            "decoder": config.decoder_layers > 0,
            "lm_head": Part.lm_head not in parts,
            "training with its [MASK] tokens": is_new,
        }
        about = replace(about, untrained=tuple(part for part, is_missing in missing.items() if is_missing))
        config, decoder = new_decoder(config, weights)
        weights = completed(config, weights | decoder, len(foreign.symbols), seed)
    check_fit(config, weights, len(foreign.symbols), path)
    check_task(about, weights, path)
    return Pretrained(config, weights, foreign.symbols, foreign.tokenizer, about, foreign.original)


def _parts(foreign: ForeignModel, source: Path) -> tuple[tuple[Part, ...], str]:
    found = foreign.weights.keys()
    if foreign.naming == FAIRSEQ:
        heads = head_names(found)
        if len(heads) > 1:
            raise UserError(f"{source} has several heads ({', '.join(heads)}); at most one can be imported")
        if heads:
            return (Part.encoder, Part.classification_head), heads[0]
    if "pre_classifier.weight" in found:
        raise UserError(
            f"{source}: DistilBERT's classification head uses ReLU, and this package's tanh; import the model that it "
            "was fine-tuned from"
        )
    if isinstance(foreign.about.finetuned_on, WordTask):
        return (Part.encoder, WORDS.part), WORDS.head
    if found & {"classifier.dense.weight", "classifier.weight"}:
        return (Part.encoder, SENTENCES.part), SENTENCES.head
    if "qa_outputs.weight" in found:
        return (Part.encoder, ANSWERS.part), ANSWERS.head
    if not predicts(foreign.weights, foreign.naming):
        return (Part.encoder,), ""
    return (Part.encoder, Part.lm_head, *([Part.output_weights] if foreign.values["untie_output_weights"] else [])), ""


def _under_our_names(
    foreign: ForeignModel, config: MaskedAutoencoderConfig, parts: tuple[Part, ...], head: str, source: Path
) -> dict[str, Tensor]:
    """Rename the weights, after checking that none is missing or unexpected."""
    if config.encoder_layers > len(foreign.weights):
        raise UserError(f"{source}: there are fewer weights ({len(foreign.weights)}) than layers in its configuration")
    names = names_of(parts, foreign.naming, config.encoder_layers, head)
    expected, found = set(names.values()), set(foreign.weights)
    if head:  # fairseq keeps the language model head in fine-tuning
        found -= set(names_of((Part.lm_head, Part.output_weights), foreign.naming).values())
    if different := sorted(expected ^ found):
        fault = "is missing" if different[0] in expected else "is unknown to this package"
        raise UserError(f"{source}: the weight {different[0]} {fault} ({len(different)} differences in total)")
    return to_ours(foreign.weights, names)


def _check_shapes(weights: dict[str, Tensor], config: MaskedAutoencoderConfig, symbols: int, source: Path):
    """Check the weights against the configuration before building a network of that size."""
    of_network = {name: weight for name, weight in weights.items() if name.startswith(NETWORK)}
    for name, expectation in skeleton(config, of_network, symbols).state_dict().items():
        weight = weights.get(name, expectation)
        if weight.shape != expectation.shape:
            raise UserError(
                f"{source}: {name} has shape {list(weight.shape)}, but configuration and dictionary require "
                f"{list(expectation.shape)}"
            )


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
    differences = pair_differences(load_tokenizer(path))
    here = " and ".join(differences)
    return [f"pairs of texts: here {here}; single texts are computed exactly"] if differences else []


def usage(pretrained: Pretrained, bundle: Path) -> str:
    """Return what the bundle of an imported model can be used for."""
    if not head_names(pretrained.weights):
        words = ["--finetune-from-model", str(bundle), *network_options(pretrained)]
        return f"To train it with fairseq-train, add\n{shlex.join(words)}"
    if pretrained.tokenizer is None:
        return "It has a task head and no tokenizer: MAELMModel.from_pretrained takes it, with token ids"
    predict = f"mae-lm predict {bundle} uses its task head; " if pretrained.about.task else ""
    return f"{predict}mae-lm adapt {bundle} trains its encoder further, without the task head"
