"""fairseq's options that do not work with the models of this package; docs/fairseq-options.md lists them.

fairseq would ignore them, or fail on them with a traceback.
"""

from collections.abc import Callable
from importlib.util import find_spec
from typing import Any, NamedTuple

from fairseq.models import ARCH_MODEL_REGISTRY

from mae_lm_fairseq.utils.errors import UserError


class Unsupported(NamedTuple):
    """An option that is refused.

    Attributes:
        option: the option, with its value if only that value is refused.
        is_given: whether a configuration has it.
        advice: what to do instead.
        packages: modules that make it work, one of which is enough; empty if nothing does.
    """

    option: str
    is_given: Callable[[Any], Any]
    advice: str
    packages: tuple[str, ...] = ()

    def reason(self) -> str:
        """Return the error message."""
        if self.packages:
            return f"{self.option} needs a package that is missing: pip install {self.packages[0]}, or {self.advice}"
        return f"{self.option} is not supported: {self.advice}"


def _starts_at_zero(schedule: Any) -> bool:
    return getattr(schedule, "_name", None) == "polynomial_decay" and schedule.warmup_updates > 0


_BACKEND = "choose --ddp-backend pytorch_ddp or legacy_ddp"
_PARTS = "each GPU holds the whole network; --checkpoint-activations and a smaller --batch-size save memory"
_REMOVE = "remove it"
UNSUPPORTED = (
    Unsupported("--ddp-backend slowmo", lambda cfg: cfg.distributed_training.ddp_backend == "slowmo", _BACKEND),
    Unsupported(
        "--ddp-backend fully_sharded",
        lambda cfg: cfg.distributed_training.ddp_backend == "fully_sharded",
        _BACKEND,
        ("fairscale",),
    ),
    Unsupported(
        "--cpu-offload",
        lambda cfg: cfg.distributed_training.cpu_offload and cfg.distributed_training.ddp_backend != "fully_sharded",
        "it is a part of --ddp-backend fully_sharded",
    ),
    Unsupported(
        "--zero-sharding os", lambda cfg: cfg.distributed_training.zero_sharding == "os", _REMOVE, ("fairscale",)
    ),
    Unsupported("--model-parallel-size", lambda cfg: cfg.common.model_parallel_size > 1, _PARTS),
    Unsupported("--pipeline-model-parallel", lambda cfg: cfg.distributed_training.pipeline_model_parallel, _PARTS),
    Unsupported("--tpu", lambda cfg: cfg.common.tpu, "choose a GPU, or --cpu"),
    # fairseq unscales the gradients twice, once for torch's optimizer and once for its own wrapper of it.
    Unsupported("--amp", lambda cfg: cfg.common.amp, "use --autocast bf16"),
    Unsupported(
        "--use-plasma-view",
        lambda cfg: cfg.common.use_plasma_view,
        "remove it; processes share a data-bin, which is mapped into memory, without it",
    ),
    Unsupported(
        "--dataset-impl other than mmap",
        lambda cfg: cfg.dataset.dataset_impl not in (None, "mmap"),
        "remove it, and prepare the data with mae-lm prepare or fairseq-preprocess --dataset-impl mmap",
    ),
    Unsupported("--quantization-config-path", lambda cfg: cfg.common.quantization_config_path, _REMOVE),
    Unsupported(
        "--combine-valid-subsets with --valid-subset",
        lambda cfg: cfg.dataset.combine_valid_subsets and cfg.dataset.valid_subset != "valid",
        "remove one of them; the former measures all of valid, valid1, ... as one",
    ),
    Unsupported(
        "--stop-min-lr with --lr-scheduler polynomial_decay and --warmup-updates",
        lambda cfg: cfg.optimization.stop_min_lr >= 0 and _starts_at_zero(cfg.lr_scheduler),
        "training would stop before the first update, whose learning rate is 0; remove one of them",
    ),
    Unsupported(
        "--write-checkpoints-asynchronously",
        lambda cfg: cfg.checkpoint.write_checkpoints_asynchronously,
        _REMOVE,
        ("iopath",),
    ),
    Unsupported(
        "--tensorboard-logdir",
        lambda cfg: cfg.common.tensorboard_logdir,
        _REMOVE,
        ("tensorboardX", "tensorboard"),
    ),
    Unsupported("--wandb-project", lambda cfg: cfg.common.wandb_project, _REMOVE, ("wandb",)),
    Unsupported("--aim-repo", lambda cfg: cfg.common.aim_repo, _REMOVE, ("aim",)),
    Unsupported("--azureml-logging", lambda cfg: cfg.common.azureml_logging, _REMOVE, ("azureml",)),
)


def is_our_model(cfg: Any) -> bool:
    """Return whether a configuration trains a model of this package."""
    return hasattr(ARCH_MODEL_REGISTRY.get(getattr(cfg.model, "_name", None)), "begin_training")


def check_supported(cfg: Any) -> None:
    """Check that no option is given that does not work with our models. Other models are left to fairseq.

    Raises:
        UserError: if one is.
    """
    if not is_our_model(cfg):
        return
    for unsupported in UNSUPPORTED:
        if unsupported.is_given(cfg) and not any(map(find_spec, unsupported.packages)):
            raise UserError(unsupported.reason())
