"""Options of fairseq that are refused before training starts."""

import pytest
from fairseq.distributed import utils as distributed_utils
from omegaconf import OmegaConf

import mae_lm_fairseq
from mae_lm_fairseq.fairseq_patches import unsupported
from mae_lm_fairseq.fairseq_patches.option_checks import check_settings
from mae_lm_fairseq.training.hydra import as_yaml
from mae_lm_fairseq.utils.errors import UserError
from tests.support.fairseq_commands import complaint, refusal
from tests.support.training import RECIPE, parse

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")  # hydra warns several times per configuration

mae_lm_fairseq.register()

GIVEN = {
    "--ddp-backend slowmo": {"distributed_training.ddp_backend": "slowmo"},
    "--ddp-backend fully_sharded": {"distributed_training.ddp_backend": "fully_sharded"},
    "--cpu-offload": {"distributed_training.cpu_offload": True},
    "--zero-sharding os": {"distributed_training.zero_sharding": "os"},
    "--model-parallel-size": {"common.model_parallel_size": 2},
    "--pipeline-model-parallel": {"distributed_training.pipeline_model_parallel": True},
    "--tpu": {"common.tpu": True},
    "--amp": {"common.amp": True},
    "--use-plasma-view": {"common.use_plasma_view": True},
    "--dataset-impl other than mmap": {"dataset.dataset_impl": "lazy"},
    "--quantization-config-path": {"common.quantization_config_path": "quantization.yaml"},
    "--combine-valid-subsets with --valid-subset": {
        "dataset.combine_valid_subsets": True,
        "dataset.valid_subset": "valid,valid1",
    },
    "--stop-min-lr with --lr-scheduler polynomial_decay and --warmup-updates": {"optimization.stop_min_lr": 1e-9},
    "--write-checkpoints-asynchronously": {"checkpoint.write_checkpoints_asynchronously": True},
    "--tensorboard-logdir": {"common.tensorboard_logdir": "board"},
    "--wandb-project": {"common.wandb_project": "project"},
    "--aim-repo": {"common.aim_repo": "repository"},
    "--azureml-logging": {"common.azureml_logging": True},
}


def config(values):
    cfg = parse("data-bin", *RECIPE, "--arch", "mae_lm_tiny")
    for name, value in values.items():
        OmegaConf.update(cfg, name, value)
    return cfg


@pytest.mark.parametrize("option", unsupported.UNSUPPORTED, ids=lambda option: option.option)
def test_an_option_is_refused_in_one_message(option, monkeypatch):
    """An option that needs a package is refused without it alone."""
    cfg, started = config(GIVEN[option.option]), []
    monkeypatch.setattr(unsupported, "find_spec", lambda name: None)
    message = refusal(distributed_utils.call_main, cfg, started.append)
    assert message == option.reason()
    assert not started
    monkeypatch.setattr(unsupported, "find_spec", lambda name: name)
    if option.packages:
        check_settings(cfg)
    else:
        with pytest.raises(UserError):
            check_settings(cfg)


def test_other_models_keep_their_options():
    given = {name: value for values in GIVEN.values() for name, value in values.items()}
    cfg = config({**given, "dataset.max_tokens": 31})
    with pytest.raises(UserError):
        check_settings(cfg)
    cfg.model._name, cfg.criterion = "roberta_base", None
    check_settings(cfg)


def test_messages():
    refused = {option.option: option.reason() for option in unsupported.UNSUPPORTED}
    assert refused["--ddp-backend slowmo"] == (
        "--ddp-backend slowmo is not supported: choose --ddp-backend pytorch_ddp or legacy_ddp"
    )
    assert refused["--wandb-project"] == (
        "--wandb-project needs a package that is missing: pip install wandb, or remove it"
    )


def test_other_values_are_accepted():
    values = {"dataset.dataset_impl": "mmap", "dataset.combine_valid_subsets": True}
    values |= {"distributed_training.ddp_backend": "legacy_ddp", "distributed_training.nprocs_per_node": 2}
    check_settings(config(values))


def test_options_of_other_models_are_unknown(capsys):
    with pytest.raises(SystemExit):
        parse("data-bin", *RECIPE, "--arch", "mae_lm_tiny", "--offload-activations")
    assert "unrecognized arguments: --offload-activations" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize("option", ["distributed_training.ddp_backend=fully_sharded", "common.model_parallel_size=2"])
def test_hydra_refuses_options(option, data_bin, run_cli, tmp_path):
    (tmp_path / "recipe.yaml").write_text(as_yaml("mae_lm_tiny", str(data_bin), str(tmp_path / "saved")))
    command = ["fairseq-hydra-train", "--config-dir", ".", "--config-name", "recipe", "common.cpu=true", option]
    name = option.partition(".")[2].partition("=")[0].replace("_", "-")
    assert complaint(run_cli(command, cwd=tmp_path)).startswith(f"error: --{name}")
