"""Starting points: every option of the network survives, and damaged descriptions of bundles are refused."""

import argparse
import contextlib
import copy
import json
from collections.abc import Iterator
from dataclasses import asdict, fields, replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from mae_lm_fairseq.core.config import ARCHITECTURES, MaskedAutoencoderConfig, plain_values, preset_config
from mae_lm_fairseq.finetuning.start import network_options
from mae_lm_fairseq.models.architectures import core_config, option_type
from mae_lm_fairseq.trained.opening import Description, describe
from mae_lm_fairseq.training.command import arguments, as_options
from mae_lm_fairseq.utils.errors import UserError
from tests.support.training import RECIPE, parse

OF_FINETUNING = {"max_positions": 512, "dropout": 0.1, "attention_dropout": 0.1, "decoder_dropout": 0.0}


def write_bundle(directory: Path, architecture: str, config: MaskedAutoencoderConfig) -> Path:
    directory.mkdir(exist_ok=True)
    content = {"network": asdict(config), "about": {"architecture": architecture, "updates": 5}}
    (directory / "config.json").write_text(json.dumps(content))
    save_file({"autoencoder.weight": torch.zeros(1)}, directory / "model.safetensors")
    return directory


def write_checkpoint(path: Path, architecture: str, config: MaskedAutoencoderConfig) -> Path:
    model = {"_name": architecture, **plain_values(config)}
    state = {"cfg": {"model": model}, "model": {}, "optimizer_history": [{"num_updates": 5}]}
    torch.save(state, path)
    return path


def with_zeros() -> Iterator[tuple[str, MaskedAutoencoderConfig]]:
    """Every preset with each of its options at 0 or False that may have it; as itself, and as an import of base."""
    for architecture, (preset, size) in ARCHITECTURES.items():
        for option in fields(MaskedAutoencoderConfig):
            kind = option_type(option)
            if size == "tiny" and kind in (int, float, bool):
                with contextlib.suppress(ValueError):
                    config = preset_config(preset, size, **{option.name: kind(0)})
                    yield from ((name, config) for name in (architecture, "mae_lm"))


@pytest.mark.parametrize("write", [write_bundle, write_checkpoint])
def test_a_decoder_of_another_program_is_none_of_them(write, tmp_path):
    """Fine-tuning drops it, and needs no code of it."""
    config = preset_config("mae_lm", "tiny", decoder_layers=1)
    object.__setattr__(config, "decoder_attention", "theirs")
    start = describe(write(tmp_path / "start", "mae_lm_tiny", config))
    assert start.config.decoder_attention == "theirs"
    assert network_options(start) == {"_name": "mae_lm_tiny", "decoder_layers": 1}


@pytest.mark.parametrize("write", [write_bundle, write_checkpoint])
def test_every_option_of_the_network_that_is_0_or_false_survives(write, tmp_path):
    zeros = set()
    for name, config in with_zeros():
        start = describe(write(tmp_path / "start", name, config))
        found = core_config(argparse.Namespace(**network_options(start)))
        assert replace(found, **OF_FINETUNING) == replace(config, **OF_FINETUNING), (name, config)
        assert (start.config.max_positions, start.about.updates) == (config.max_positions, 5)
        zeros |= {option for option, value in vars(config).items() if value in (0, False)}
    assert {"relative_buckets", "decoder_relative_buckets", "decoder_layers", "pre_norm"} <= zeros


def test_the_options_are_those_of_the_command(tmp_path):
    config = preset_config("mae_lm", "tiny", relative_buckets=0, pre_norm=True, decoder_share_positions=True)
    start = describe(write_bundle(tmp_path / "start", "mae_lm_tiny", config))
    size = RECIPE.index("--encoder-layers"), RECIPE.index("--log-format")
    others = [*RECIPE[: size[0]], *RECIPE[size[1] :]]
    found = core_config(parse(*arguments("data", as_options({"model": network_options(start)}), others)).model)
    assert replace(found, **OF_FINETUNING) == replace(config, **OF_FINETUNING)


def places(content: dict, *path: str) -> Iterator[tuple[str, ...]]:
    """The path of every value in nested objects."""
    for name, value in content.items():
        yield (*path, name)
        if isinstance(value, dict):
            yield from places(value, *path, name)


INFINITE, NESTED = "an infinite number", "a deep list"
WRITTEN = {f'"{INFINITE}"': "1e999", f'"{NESTED}"': "[" * 900 + "]" * 900}
VALUES = (INFINITE, NESTED, None, True, -1, 0.5, 10**400, "x", [], [[1]], {}, {"x": 1})


def test_any_damage_of_a_bundles_description_is_refused_or_harmless(tmp_path):
    bundle = write_bundle(tmp_path / "start", "mae_lm_tiny", preset_config("mae_lm", "tiny"))
    file = bundle / "config.json"
    intact = json.loads(file.read_text())
    texts = [file.read_text()[:40], "", "[]", "5", "null", "[" * 100_000, '{"network": {}}', "\ud800"]
    for *path, name in places(intact):
        for value in (*VALUES, "removed"):
            damaged = node = copy.deepcopy(intact)
            for key in path:
                node = node[key]
            node[name] = value
            if value == "removed":
                del node[name]
            text = json.dumps(damaged)
            for word, written in WRITTEN.items():
                text = text.replace(word, written)
            texts.append(text)
    described = []
    for text in texts:
        file.write_bytes(text.encode(errors="surrogatepass"))
        described.append(description_unless_refused(bundle))
    accepted = [found for found in described if found]
    assert len(accepted) < 0.1 * len(texts)
    assert {network_options(found)["_name"] for found in accepted} <= {"mae_lm_tiny", "mae_lm"}


def description_unless_refused(path: Path) -> Description | None:
    try:
        return describe(path)
    except UserError:
        return None
