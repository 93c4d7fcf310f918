"""Options of the pretraining task, and checks of what contradicts each other or would be ignored."""

from dataclasses import dataclass, field
from typing import Optional

from fairseq.dataclass import ChoiceEnum
from fairseq.tasks.masked_lm import MaskedLMConfig
from omegaconf import II

from mae_lm_fairseq.core.config import MaskedAutoencoderConfig, MaskJoin
from mae_lm_fairseq.fairseq_patches.keeping import updates_to_keep
from mae_lm_fairseq.fairseq_patches.started_processes import DDP_TIMEOUT
from mae_lm_fairseq.tasks.mask_functions import check_mask_function
from mae_lm_fairseq.tasks.masking_rates import weights_by_rate
from mae_lm_fairseq.tasks.sequences import MIN_SAMPLE_TOKENS
from mae_lm_fairseq.utils.command_line import Argument
from mae_lm_fairseq.utils.errors import UserError

_DECIDED_BY_MASK_FUNCTIONS = (
    *("leave_unmasked_prob", "random_token_prob", "freq_weighted_replacement", "mask_whole_words"),
    *("mask_multiple_length", "mask_stdev", "repeat_tokens"),
)
"""Options that must have their default with ``--mask-function``."""
MASK_PROB_SCHEDULES = ChoiceEnum(["linear", "cosine"])
LOSS_WEIGHTS = ChoiceEnum(["equal", "inverse-rate"])


@dataclass
class MaskedAutoencoderLMConfig(MaskedLMConfig):
    """Options of fairseq's ``masked_lm``, with MAE-LM's defaults: 15 % predicted, all replaced by ``<mask>``."""

    tokens_per_sample: int = field(
        default=512, metadata={"help": "maximum length of a sequence in tokens, <s> included"}
    )
    leave_unmasked_prob: float = field(
        default=0.0, metadata={"help": "fraction of the predicted tokens that are left unchanged (RoBERTa: 0.1)"}
    )
    random_token_prob: float = field(
        default=0.0, metadata={"help": "fraction of the predicted tokens that are replaced at random (RoBERTa: 0.1)"}
    )
    mask_whole_words: bool = field(
        default=False, metadata={"help": "mask whole words; word starts are read from the tokenizer in the data-bin"}
    )
    mask_function: Optional[str] = field(  # noqa: UP045  as fairseq's parser understands it
        default=None,
        metadata={
            "help": "name of a function of --user-dir that chooses which tokens are predicted, and what replaces them"
        },
    )
    mask_prob_end: Optional[float] = field(  # noqa: UP045
        default=None, metadata={"help": "masking rate at the end of a schedule that starts at --mask-prob"}
    )
    mask_prob_schedule: MASK_PROB_SCHEDULES = field(
        default="linear", metadata={"help": "shape of the schedule from --mask-prob to --mask-prob-end"}
    )
    mask_prob_updates: Optional[int] = field(  # noqa: UP045
        default=None,
        metadata={
            "help": "number of updates until --mask-prob-end is reached (default: --total-num-update, or --max-update)"
        },
    )
    mask_prob_range: Optional[str] = field(  # noqa: UP045
        default=None,
        metadata={"help": "draw the masking rate of each training sequence from a range, such as 0.15,0.5"},
    )
    loss_weight: LOSS_WEIGHTS = field(
        default="equal",
        metadata={
            "help": "weight of a sequence's loss: that of its predicted tokens, or, with inverse-rate, divided by its "
            "masking rate and by all tokens (masked diffusion)"
        },
    )
    repeat_tokens: int = field(
        default=1,
        metadata={
            "help": "repeat each token N times, each copy with a mask of its own; --tokens-per-sample counts all"
        },
    )
    max_update: int = II("optimization.max_update")
    total_num_update: float = II("oc.select:lr_scheduler.total_num_update,0")
    mask_in_encoder: float = field(
        default=0.0,
        metadata={
            "help": "ablation: fraction of the <mask> tokens that the encoder sees (0: none, as in MAE-LM; 1: all)"
        },
    )
    effective_rank_interval: int = field(
        default=0,
        metadata={
            "help": "log the effective rank of the encoder's hidden states on a fixed part of the validation text "
            "every N updates (0: never)"
        },
    )
    freeze_encoder_updates: int = field(
        default=0,
        metadata={
            "help": "do not train the encoder, with the token embeddings that the head shares, in the first N updates"
        },
    )
    keep_at: Optional[str] = field(  # noqa: UP045
        default=None,
        metadata={
            "help": "keep the weights after these numbers of updates, such as 500,1000, as N.pt, without the "
            "optimizer's state"
        },
    )
    keep_dir: Optional[str] = field(  # noqa: UP045
        default=None, metadata={"help": "directory of the weights that --keep-at keeps (default: --save-dir)"}
    )
    cuda_graphs: bool = field(
        default=False,
        metadata={
            "help": "bring batches to fixed sizes, and launch forward and backward pass as one CUDA graph; on a CPU, a "
            "rehearsal without the graph"
        },
    )
    batch_size: Optional[int] = II("dataset.batch_size")  # noqa: UP045
    train_subset: str = II("dataset.train_subset")
    criterion: str = II("oc.select:criterion._name,''")
    amp: bool = II("common.amp")
    ddp_backend: str = II("distributed_training.ddp_backend")
    distributed_world_size: int = II("distributed_training.distributed_world_size")
    ddp_timeout: int = field(
        default=DDP_TIMEOUT,
        metadata={"help": "seconds that a process waits for the others of a job before it ends with an error message"},
    )


def check_options(cfg: MaskedAutoencoderLMConfig) -> None:
    """Reject values that would be ignored, or drop text.

    Raises:
        UserError: if there is one.
    """
    most_copies = (cfg.tokens_per_sample - 1) // (MIN_SAMPLE_TOKENS - 1)
    ranges = {
        "tokens_per_sample": Argument(at_least=MIN_SAMPLE_TOKENS),
        "repeat_tokens": Argument(at_least=1, at_most=most_copies),
        "mask_in_encoder": Argument(at_least=0, at_most=1),
    }
    for name, limits in ranges.items():
        value = getattr(cfg, name)
        problem = limits.problem(value)
        if problem:
            raise UserError(f"--{name.replace('_', '-')} {value} {problem}")
    masks_spans = cfg.mask_whole_words or cfg.mask_multiple_length > 1 or cfg.mask_stdev > 0
    if cfg.repeat_tokens > 1 and masks_spans:
        others = "--mask-whole-words, --mask-multiple-length and --mask-stdev"
        raise UserError(f"--repeat-tokens {cfg.repeat_tokens} masks copies independently; remove {others}")
    if cfg.shorten_method == "random_crop":
        raise UserError("--shorten-method random_crop depends on the timing of threads; use truncate or none")
    if cfg.freq_weighted_replacement and cfg.random_token_prob == 0:
        raise UserError("--freq-weighted-replacement has no effect with --random-token-prob 0")
    if cfg.keep_at is not None:
        updates_to_keep(cfg.keep_at, cfg.max_update)
    elif cfg.keep_dir:
        raise UserError(f"--keep-dir {cfg.keep_dir} has no effect without --keep-at; remove it")
    if cfg.mask_function is not None:
        _check_function(cfg)


def _check_function(cfg: MaskedAutoencoderLMConfig) -> None:
    """Check that a mask function is known, and that no option contradicts it."""
    check_mask_function(cfg.mask_function)
    defaults = MaskedAutoencoderLMConfig()
    for name in _DECIDED_BY_MASK_FUNCTIONS:
        value = getattr(cfg, name)
        if value != getattr(defaults, name):
            option = f"--{name.replace('_', '-')} {value}"
            raise UserError(f"{option} contradicts --mask-function {cfg.mask_function}, which decides on it; remove it")


def check_length(cfg: MaskedAutoencoderLMConfig, longest: int | None, limit: str = "--max-positions"):
    """Reject sequences that are longer than a model allows.

    Args:
        longest: number of positions of the model; None for any number.
        limit: the option or the key that decides on it.
    """
    if longest is not None and cfg.tokens_per_sample > longest:
        raise UserError(
            f"--tokens-per-sample {cfg.tokens_per_sample} is more than the {longest} positions of the model; lower it, "
            f"or raise {limit}"
        )


def check_masking(cfg: MaskedAutoencoderLMConfig, network: MaskedAutoencoderConfig):
    """Reject options of masking that contradict the network, or would have no effect."""
    fraction = cfg.mask_in_encoder
    kept, random = cfg.leave_unmasked_prob, cfg.random_token_prob
    if network.mask_states > 1 and (kept or random):
        raise UserError(
            f"--leave-unmasked-prob {kept} and --random-token-prob {random} contradict ExLM (--mask-states "
            f"{network.mask_states}), whose loss aligns the targets to <mask> tokens; both must be 0"
        )
    if network.mask_states > 1 and weights_by_rate(cfg):
        raise UserError(
            f"--loss-weight {cfg.loss_weight} weights single targets, and the loss of ExLM (--mask-states "
            f"{network.mask_states}) is that of all targets of a sequence; remove it, or choose another preset"
        )
    if network.mask_states > 1 and cfg.mask_function is not None:
        states = f"ExLM (--mask-states {network.mask_states}), whose loss aligns the targets to <mask> tokens"
        raise UserError(f"--mask-function {cfg.mask_function} contradicts {states}; remove one of them")
    if fraction > 0 and network.mask_join is MaskJoin.embeddings:
        raise UserError(
            f"--mask-in-encoder {fraction} has no effect with --mask-join embeddings: the encoder sees every <mask>"
        )
    if fraction == 0 and network.reset_mask_states:
        raise UserError("--reset-mask-states has no effect with --mask-in-encoder 0: the encoder sees no <mask>")
