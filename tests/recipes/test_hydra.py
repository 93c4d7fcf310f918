"""The YAML for fairseq-hydra-train says what the command line says."""

import pytest
import torch
from fairseq import tasks
from fairseq.data import Dictionary
from fairseq.dataclass.initialize import add_defaults, hydra_init
from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from omegaconf import OmegaConf

from mae_lm_fairseq.recipes.hydra import as_yaml
from mae_lm_fairseq.recipes.pretrain import complete, understand
from mae_lm_fairseq.recipes.settings import ARCHITECTURES

# A second of processor time for most tests. Hydra warns some times for each configuration.
pytestmark = [pytest.mark.integration, pytest.mark.filterwarnings("ignore::UserWarning")]


def from_yaml(architecture, directory):
    """The configuration that fairseq-hydra-train trains with."""
    (directory / "recipe.yaml").write_text(as_yaml(architecture, "data", "saved"))
    GlobalHydra.instance().clear()
    hydra_init("recipe")
    with initialize_config_dir(str(directory), version_base="1.1"):
        cfg = compose("recipe")
    add_defaults(cfg)
    return OmegaConf.create(OmegaConf.to_container(cfg, resolve=True, enum_to_str=True))


def shapes(cfg):
    """Names and shapes of a model's parameters and buffers, without making them."""
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
    by_flags = understand(complete(architecture, *paths, []))
    # A criterion without options gets all arguments from the command line, and its name alone from YAML.
    assert by_yaml.criterion._name == by_flags.criterion._name
    # Training does not read how generated text is scored; the command line has a default for it.
    groups = set(by_flags) - {"criterion", "scoring"}
    assert {group: by_yaml[group] for group in groups} == {group: by_flags[group] for group in groups}
    assert shapes(by_yaml) == shapes(by_flags)
