"""Faster composition of fairseq's configurations, most of the time of a test that makes one in this process.

Hydra composes the groups that a command line chooses (``task=...``), and then sets each of its 290 values. The groups
are almost always the same ones, so their composition is kept.
"""

import contextlib
import copy
import functools
from unittest import mock

import fairseq.dataclass.utils
from hydra import compose, initialize_config_module
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from omegaconf import DictConfig, OmegaConf


@functools.cache
def _parsed(override: str) -> Override:
    return OverridesParser.create().parse_override(override)


@functools.cache
def _groups(name: str, chosen: tuple[str, ...]) -> DictConfig:
    with initialize_config_module("fairseq.config", version_base="1.1"):
        return compose(name, overrides=list(chosen))


def _compose(name: str, overrides: list[str], strict: bool) -> DictConfig:
    assert not strict
    chosen = tuple(override for override in overrides if "." not in override.partition("=")[0])
    cfg = copy.deepcopy(_groups(name, chosen))
    OmegaConf.set_struct(cfg, True)
    values = [copy.copy(_parsed(override)) for override in overrides if override not in chosen]
    ConfigLoaderImpl._apply_overrides_to_config(values, cfg)
    OmegaConf.set_struct(cfg, False)
    return cfg


compose_groups_once = mock.patch.multiple(
    fairseq.dataclass.utils, compose=_compose, initialize=lambda config_path: contextlib.nullcontext()
)
"""Patch that lets fairseq compose configurations in this way."""
