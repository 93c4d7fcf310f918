"""Equality of the YAML for fairseq-hydra-train and the command line."""

import pytest
import torch
from fairseq import tasks
from fairseq.data import Dictionary
from fairseq.dataclass.initialize import add_defaults, hydra_init
from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from omegaconf import OmegaConf

from mae_lm_fairseq.training.hydra import as_yaml
from mae_lm_fairseq.training.pretrain import build_arguments, parse_configuration
from mae_lm_fairseq.training.settings import ARCHITECTURES

# Most tests take a second of CPU time. Hydra warns several times per configuration.
pytestmark = [pytest.mark.integration, pytest.mark.filterwarnings("ignore::UserWarning")]


def from_yaml(architecture, directory):
    """Return the configuration that fairseq-hydra-train uses."""
    (directory / "recipe.yaml").write_text(as_yaml(architecture, "data", "saved"))
    GlobalHydra.instance().clear()
    hydra_init("recipe")
    with initialize_config_dir(str(directory), version_base="1.1"):
        cfg = compose("recipe")
    add_defaults(cfg)
    return OmegaConf.create(OmegaConf.to_container(cfg, resolve=True, enum_to_str=True))


def shapes(cfg):
    """Return the names and shapes of a model's parameters and buffers, without allocating them."""
    words = Dictionary()
    words.add_symbol("<mask>")
    task = tasks.TASK_REGISTRY[cfg.task._name](cfg.task, words)
    with torch.device("meta"):
        model = task.build_model(cfg.model)
    return {name: tuple(value.shape) for name, value in model.state_dict().items()}


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_yaml_and_command_line_are_the_same(architecture, tmp_path):
    by_yaml = from_yaml(architecture, tmp_path)
    paths = by_yaml.task.data, by_yaml.checkpoint.save_dir
    by_flags = parse_configuration(build_arguments(architecture, *paths, []))
    # From the command line, a criterion without options gets all arguments; from YAML only its name.
    assert by_yaml.criterion._name == by_flags.criterion._name
    # Scoring of generated text is not used in training; the command line has a default for it.
    groups = set(by_flags) - {"criterion", "scoring"}
    assert {group: by_yaml[group] for group in groups} == {group: by_flags[group] for group in groups}
    assert shapes(by_yaml) == shapes(by_flags)


def test_the_paths_of_all_shards_are_absolute(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert f"data: {tmp_path}/a:{tmp_path}/b\n" in as_yaml("mae_lm_tiny", "a:b", "saved")
