"""The pretraining task: fairseq's ``masked_lm`` without dropped lines and with new masks in every epoch."""

import functools
import itertools
import logging
import math
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Optional

import numpy as np
import torch
from fairseq import utils
from fairseq.data import (
    Dictionary,
    FairseqDataset,
    PrependTokenDataset,
    RightPadDataset,
    SortDataset,
    TokenBlockDataset,
    data_utils,
)
from fairseq.data.iterators import EpochBatchIterator
from fairseq.data.shorten_dataset import maybe_shorten_dataset
from fairseq.dataclass import ChoiceEnum
from fairseq.distributed.utils import get_data_parallel_world_size, get_global_rank
from fairseq.logging import metrics
from fairseq.tasks import register_task
from fairseq.tasks.masked_lm import MaskedLMConfig, MaskedLMTask
from omegaconf import II, open_dict

from mae_lm_fairseq.checkpoints.checkpoint_file import value_at
from mae_lm_fairseq.core.config import MaskedAutoencoderConfig, MaskJoin
from mae_lm_fairseq.core.packing import NEEDED_BY_SOME, BatchLayout
from mae_lm_fairseq.cost.planned_run import DEVICES, kind_of_gpu
from mae_lm_fairseq.fairseq_patches.started_processes import DDP_TIMEOUT
from mae_lm_fairseq.models.architectures import Autocast
from mae_lm_fairseq.models.mae_lm import MAELMModel
from mae_lm_fairseq.statistics.rank_monitor import MONITORED_TOKENS, RankMonitor
from mae_lm_fairseq.tasks.long_lines import MIN_SAMPLE_TOKENS, split_long_lines
from mae_lm_fairseq.tasks.masking import (
    EarlyMasksDataset,
    LayoutDataset,
    RepeatedTokensDataset,
    masked_pair,
    training_flops,
    word_starts,
)
from mae_lm_fairseq.tasks.masking_rates import NumberedBatches, RateSchedule, schedule_updates, variable_rate
from mae_lm_fairseq.text.data_bin import (
    DICTIONARY,
    check_data_bin,
    check_dictionary,
    check_token_range,
    count_tokens,
    dictionary_fingerprint,
)
from mae_lm_fairseq.text.manifest import MANIFEST, Manifest
from mae_lm_fairseq.text.tokenizer import MASK
from mae_lm_fairseq.text.tokenizer_files import NAMES, find_tokenizer
from mae_lm_fairseq.utils.errors import UserError

logger = logging.getLogger(__name__)

MASK_PROB_SCHEDULES = ChoiceEnum(["linear", "cosine"])


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
    mask_prob_end: Optional[float] = field(  # noqa: UP045  as fairseq's parser understands it
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
    ddp_timeout: int = field(
        default=DDP_TIMEOUT,
        metadata={"help": "seconds that a process waits for the others of a job before it ends with an error message"},
    )


@register_task("masked_autoencoder_lm", dataclass=MaskedAutoencoderLMConfig)
class MaskedAutoencoderLMTask(MaskedLMTask):
    """Masked language modelling over a fairseq data-bin, for all architectures of this package.

    Differences from ``masked_lm``: lines longer than a sequence are split, not dropped; masks change with every epoch
    for any number of data workers; ``--mask-whole-words`` reads word starts from the tokenizer; batches include their
    layout; data-bin, dictionary and checkpoint are checked to match.
    """

    def __init__(self, cfg: MaskedAutoencoderLMConfig, dictionary: Dictionary | None = None):
        super().__init__(cfg, dictionary)
        # Data workers that survive an epoch would keep its masks, because they are not notified of the next one.
        with open_dict(cfg):
            cfg.reuse_dataloader = cfg.persistent_workers = False
        self.rate = variable_rate(cfg)
        self.layout_needs: frozenset[str] | None = None
        self.flops: Callable[[BatchLayout], int] | None = None
        self.peak_flops: float | None = None
        self.rank_monitor: RankMonitor | None = None
        self.effective_ranks: dict[str, float] = {}

    @classmethod
    def setup_task(cls, cfg: MaskedAutoencoderLMConfig, **kwargs) -> "MaskedAutoencoderLMTask":
        check_options(cfg)
        return super().setup_task(cfg, **kwargs)

    @classmethod
    def load_dict(cls, cfg: MaskedAutoencoderLMConfig) -> Dictionary:
        """Load the dictionary of the (first) data directory.

        Raises:
            UserError: if it is missing or damaged, or the manifest beside it names another dictionary.
        """
        directory = utils.split_paths(cfg.data)[0]
        path = os.path.join(directory, DICTIONARY)
        if not os.path.isfile(path):
            raise UserError(f"{path} does not exist; name a data-bin made by mae-lm prepare")
        dictionary = _read_dictionary(path)
        check_dictionary(directory, dictionary.symbols)
        logger.info("dictionary: %d types", len(dictionary))
        _log_tokenizer(directory)
        return dictionary

    def load_dataset(self, split: str, epoch: int = 1, combine: bool = False, **kwargs):
        """Load a split; of sharded data, the shard of ``epoch``.

        Batches have the layouts that the models built so far need; all layouts if there is no model yet.

        Raises:
            UserError: if the split is missing, truncated or empty, or of another dictionary.
        """
        blocks = self._load_dataset_split(split, epoch, combine)
        source, target = masked_pair(
            blocks,
            self.dictionary,
            self.rate,
            mask_idx=self.mask_idx,
            seed=self.cfg.seed,
            mask_prob=self.cfg.mask_prob,
            leave_unmasked_prob=self.cfg.leave_unmasked_prob,
            random_token_prob=self.cfg.random_token_prob,
            freq_weighted_replacement=self.cfg.freq_weighted_replacement,
            mask_whole_words=self._word_starts() if self.cfg.mask_whole_words else None,
            mask_multiple_length=self.cfg.mask_multiple_length,
            mask_stdev=self.cfg.mask_stdev,
        )
        pad = self.dictionary.pad()
        dataset = self._regular_dataset(source, RightPadDataset(target, pad_idx=pad))
        if self.cfg.mask_in_encoder > 0:
            dataset = EarlyMasksDataset(dataset, self.mask_idx, self.cfg.mask_in_encoder, self.cfg.seed)
        needs = NEEDED_BY_SOME if self.layout_needs is None else self.layout_needs
        dataset = LayoutDataset(dataset, pad, self.mask_idx, needs, self.flops)
        with data_utils.numpy_seed(self.cfg.seed):
            shuffle = np.random.permutation(len(blocks))
        self.datasets[split] = SortDataset(dataset, sort_order=[shuffle, blocks.sizes])

    def number_batches(self, iterator: EpochBatchIterator, updates: int, per_update: int):
        """Tell the sequences of the next epoch which update trains on them, for masking rates that are not fixed.

        Called by the patched trainer before it begins or continues an epoch, after a number of ``updates``;
        ``per_update`` is the number of batches per update of one process.
        """
        if self.rate is not None:
            ordered = functools.partial(EpochBatchIterator.ordered_batches, iterator)
            iterator.ordered_batches = lambda *args: NumberedBatches(ordered(*args), updates, per_update)

    def _word_starts(self):
        """Return the word starts, from the tokenizer in the (first) data directory if there is one."""
        directory = utils.split_paths(self.cfg.data)[0]
        tokenizer = find_tokenizer(directory)
        if tokenizer is not None and [*tokenizer.symbols, MASK] != self.dictionary.symbols:
            raise UserError(
                f"--mask-whole-words: {tokenizer.path} does not belong to the dict.txt beside it; restore the "
                "tokenizer of the data"
            )
        return word_starts(self.dictionary, tokenizer)

    def _load_dataset_split(self, split: str, epoch: int, combine: bool) -> FairseqDataset:
        """Load the sequences of a split before masking: ``<s>`` and a block of lines."""
        paths = utils.split_paths(self.cfg.data)
        directory = paths[(epoch - 1) % len(paths)]
        for shard in paths if combine else (directory,):  # of training, those of later epochs, too
            if shard != paths[0]:
                self._check_shard(shard, paths[0])
                count_tokens(os.path.join(shard, split))
        prefix = os.path.join(directory, split)
        self._check_split(prefix, combine)
        lines = data_utils.load_indexed_dataset(prefix, self.dictionary, combine=combine)
        if len(lines) == 0:
            raise UserError(f"{prefix}.idx has no text")
        block_size = (self.cfg.tokens_per_sample - 1) // self.cfg.repeat_tokens  # one less for <s>
        lines = maybe_shorten_dataset(
            lines, split, self.cfg.shorten_data_split_list, self.cfg.shorten_method, block_size, self.cfg.seed
        )
        if self.cfg.sample_break_mode != "none":
            lines = split_long_lines(lines, block_size)
        if np.max(lines.sizes) < 2 and self.cfg.sample_break_mode == "complete_doc":
            raise UserError(f"{prefix}.idx has only empty lines")
        blocks = TokenBlockDataset(
            lines,
            lines.sizes,
            block_size,
            pad=self.dictionary.pad(),
            eos=self.dictionary.eos(),
            break_mode=self.cfg.sample_break_mode,
        )
        logger.info("loaded %d blocks from: %s", len(blocks), prefix)
        sequences = PrependTokenDataset(blocks, self.dictionary.bos())
        if self.cfg.repeat_tokens == 1:
            return sequences
        return RepeatedTokensDataset(sequences, self.cfg.repeat_tokens, [self.dictionary.bos(), self.dictionary.eos()])

    def _check_shard(self, directory: str, first: str):
        """Check that a shard has the dictionary of the first one, by its manifest, or else by its ``dict.txt``."""
        manifest, dictionary = (os.path.join(directory, name) for name in (MANIFEST, DICTIONARY))
        if os.path.exists(manifest):
            theirs = Manifest.read(manifest).dictionary_sha256
        elif os.path.exists(dictionary):
            theirs = dictionary_fingerprint(_read_dictionary(dictionary).symbols)
        else:
            return
        if theirs != dictionary_fingerprint(self.dictionary.symbols):
            raise UserError(
                f"{directory} was prepared with another dictionary than {first}; prepare all shards with one tokenizer "
                f"(mae-lm prepare --tokenizer {first})"
            )

    def _check_split(self, prefix: str, combine: bool):
        """Check the data-bin of a split and, with ``combine``, its further parts (train1, train2, ...)."""
        parts = itertools.takewhile(
            lambda part: os.path.exists(f"{part}.idx"), (f"{prefix}{k}" for k in itertools.count(1))
        )
        for part in (prefix, *(parts if combine else ())):
            check_data_bin(part)
            check_token_range(part, self.mask_idx)

    def build_model(self, cfg, from_checkpoint: bool = False):
        model = super().build_model(cfg, from_checkpoint)
        if model.max_positions() is not None and self.cfg.tokens_per_sample > model.max_positions():
            raise UserError(
                f"--tokens-per-sample {self.cfg.tokens_per_sample} is more than the model's "
                f"--max-positions {model.max_positions()}; lower it or raise the latter"
            )
        if isinstance(model, MAELMModel):
            check_masking(self.cfg, model.autoencoder.config)
            self.layout_needs = (self.layout_needs or frozenset()) | model.autoencoder.needs()
            self.flops = functools.partial(training_flops, model.autoencoder.config, len(self.dictionary))
        else:
            self._check_model_type()
        return model

    def _check_model_type(self):
        for option in ("mask_in_encoder", "effective_rank_interval", "freeze_encoder_updates"):
            if getattr(self.cfg, option):
                raise UserError(f"--{option.replace('_', '-')} is for models of mae_lm_fairseq; choose such an --arch")

    def begin_epoch(self, epoch: int, model):
        """Set up the rank monitor and find the device's peak. Called before the first update and after resuming.

        Raises:
            UserError: if ``--effective-rank-interval`` is set and the data has no validation split.
        """
        super().begin_epoch(epoch, model)
        # In every process, so that all of them stop if the split is missing.
        if self.cfg.effective_rank_interval > 0 and self.rank_monitor is None:
            self.rank_monitor = self._rank_monitor()
        self.peak_flops = peak_flops(model)

    def train_step(self, sample, model, criterion, optimizer, update_num: int, ignore_grad: bool = False):
        """Compute loss and gradients. A frozen encoder has none, so that neither clipping nor the optimizer sees it."""
        outputs = super().train_step(sample, model, criterion, optimizer, update_num, ignore_grad)
        self._drop_frozen_gradients(model, update_num)
        return outputs

    def _drop_frozen_gradients(self, model, update_num: int):
        if update_num < self.cfg.freeze_encoder_updates:
            for parameter in model.autoencoder.encoder.parameters():
                parameter.grad = None

    def reduce_metrics(self, logging_outputs: list[dict], criterion):
        """Log the criterion's metrics and, in training, the rate of a device by formula.

        ``tflops`` is the FLOPs of the batches, without padding and recomputed activations, in 1e12 per second of each
        device, over the same time as fairseq's ``wps``. ``mfu`` is its fraction of the device's peak, if that is known.
        ``mask_prob`` is the fraction of the tokens that are predicted, if the masking rate is not always the same.
        """
        super().reduce_metrics(logging_outputs, criterion)
        if self.rate is not None:
            predicted, tokens = (
                sum(log.get(name, 0) for log in logging_outputs) for name in ("sample_size", "ntokens")
            )
            metrics.log_scalar("mask_prob", predicted / max(tokens, 1), tokens, round=4)
        if not any("flops" in log for log in logging_outputs):
            return
        flops = sum(log["flops"] for log in logging_outputs)  # of several processes a tensor, which is not read here
        metrics.log_speed("tflops", flops / 1e12 / get_data_parallel_world_size(), priority=95, round=4)
        if self.peak_flops is not None:
            peak = self.peak_flops / 1e12
            metrics.log_derived("mfu", lambda meters: round(float(meters["tflops"].avg) / peak, 4), priority=96)

    def optimizer_step(self, optimizer, model, update_num: int):
        """Take an optimizer step and log the latest effective ranks.

        ``update_num`` does not count this step.
        """
        self._drop_frozen_gradients(model, update_num)  # of several processes: legacy_ddp makes them zero
        super().optimizer_step(optimizer, model, update_num)
        if self.rank_monitor is None or get_global_rank() != 0:
            return
        if (update_num + 1) % self.cfg.effective_rank_interval == 0:
            self.effective_ranks = self.rank_monitor.measure(model.autoencoder.encoder)
            found = ", ".join(f"{name} {value:.0f}" for name, value in self.effective_ranks.items())
            logger.info("effective ranks after %d updates: %s", update_num + 1, found)
        for name, value in self.effective_ranks.items():
            metrics.log_scalar(name, value, weight=0, priority=600, round=1)  # 0: the last value, no average

    def _rank_monitor(self) -> RankMonitor:
        """Build the rank monitor on a fixed set of sequences, spread over the validation split."""
        if not os.path.exists(os.path.join(utils.split_paths(self.cfg.data)[0], "valid.idx")):
            raise UserError(
                f"--effective-rank-interval {self.cfg.effective_rank_interval} needs the split valid, which "
                f"{self.cfg.data} lacks; prepare the data with --valid, or remove the option"
            )
        blocks = self._load_dataset_split("valid", epoch=1, combine=False)
        count = min(len(blocks), math.ceil(MONITORED_TOKENS / np.mean(blocks.sizes)))
        texts = [blocks[len(blocks) * k // count].tolist() for k in range(count)]
        special = [self.dictionary.bos(), self.dictionary.eos()]
        return RankMonitor(texts, self.dictionary.pad(), self.mask_idx, special, self.cfg.mask_in_encoder)

    def state_dict(self) -> dict:
        """Return the task state for checkpoints: the fingerprint of the dictionary."""
        return {"dictionary": dictionary_fingerprint(self.dictionary.symbols)}

    def load_state_dict(self, state_dict: dict):
        """Check the dictionary of a model that is loaded outside of training. No state is restored.

        Raises:
            UserError: if the model was trained with another dictionary.
        """
        self._compare_dictionary("the model", state_dict)

    def check_checkpoint(self, filename: str, state: dict, resumes: bool = False):
        """Check a checkpoint that training is about to start from.

        Raises:
            UserError: if it was trained with another dictionary, or with a masking rate that moves in another time.
        """
        self._compare_dictionary(filename, state.get("task_state") or {})
        theirs = value_at(state, "cfg", "task")
        if resumes and isinstance(self.rate, RateSchedule) and value_at(theirs, "mask_prob_end") is not None:
            updates = schedule_updates(theirs)
            if updates != self.rate.updates:
                raise UserError(
                    f"--mask-prob-updates {self.rate.updates}, by default the length of the learning rate's schedule: "
                    f"the masking rate would jump, as that of {filename} moves in {updates} updates; add "
                    f"--mask-prob-updates {updates}"
                )

    def _compare_dictionary(self, subject: str, state_dict: dict):
        theirs = state_dict.get("dictionary")
        if theirs is not None and theirs != dictionary_fingerprint(self.dictionary.symbols):
            raise UserError(
                f"{subject} was trained with another dictionary than the dict.txt of {self.cfg.data}; "
                "prepare the data with that model's tokenizer (mae-lm prepare --tokenizer)"
            )


def peak_flops(model) -> float | None:
    """Return the peak FLOP/s of the model's GPU in half precision; None for other devices and for float32 products.

    The peak of float32 depends on whether torch uses TF32.
    """
    weight = next(model.parameters())
    is_half = weight.dtype != torch.float32 or getattr(model, "autocast", None) is Autocast.bf16
    kind = kind_of_gpu(torch.cuda.get_device_properties(weight.device)) if weight.is_cuda and is_half else None
    return None if kind is None else DEVICES[kind].half


def _read_dictionary(path: str) -> Dictionary:
    try:
        return Dictionary.load(path)
    except Exception as problem:  # fairseq raises a bare Exception for text that is not UTF-8
        reason = " ".join(str(problem).split())
        raise UserError(f"{path} is not a dictionary of fairseq: {reason}") from None


def _log_tokenizer(directory: str) -> None:
    """Log what is known of the tokenizer before training, and not only when a bundle is made after it.

    Raises:
        UserError: if the tokenizer is damaged, or not that of the dictionary.
    """
    tokenizer = find_tokenizer(directory)
    if tokenizer is None:
        logger.warning(
            "%s has no tokenizer. Training does not need one, but mae-lm bundle, rank and fine-tuning do: copy it "
            "there (%s)",
            directory,
            NAMES,
        )
    elif tokenizer.has_own_order:
        logger.info(
            "%s: the ids of %s are matched to it by symbol", os.path.join(directory, DICTIONARY), tokenizer.path
        )


def check_options(cfg: MaskedAutoencoderLMConfig):
    """Reject options that would raise a traceback later or have no effect."""
    if cfg.tokens_per_sample < MIN_SAMPLE_TOKENS:
        raise UserError(f"--tokens-per-sample {cfg.tokens_per_sample} must be at least {MIN_SAMPLE_TOKENS}")
    if not 1 <= cfg.repeat_tokens <= (cfg.tokens_per_sample - 1) // (MIN_SAMPLE_TOKENS - 1):
        room = f"leave room for {MIN_SAMPLE_TOKENS - 1} tokens in --tokens-per-sample {cfg.tokens_per_sample}"
        raise UserError(f"--repeat-tokens {cfg.repeat_tokens} must be at least 1, and {room}")
    if cfg.repeat_tokens > 1 and (cfg.mask_whole_words or cfg.mask_multiple_length > 1 or cfg.mask_stdev > 0):
        others = "--mask-whole-words, --mask-multiple-length and --mask-stdev"
        raise UserError(f"--repeat-tokens {cfg.repeat_tokens} masks copies independently; remove {others}")
    if not 0 < cfg.mask_prob < 1:
        raise UserError(f"--mask-prob {cfg.mask_prob} must be above 0 and below 1")
    for name in ("leave_unmasked_prob", "random_token_prob", "mask_in_encoder"):
        if not 0 <= getattr(cfg, name) <= 1:
            raise UserError(f"--{name.replace('_', '-')} {getattr(cfg, name)} must be between 0 and 1")
    if cfg.leave_unmasked_prob + cfg.random_token_prob > 1:
        raise UserError(
            f"--leave-unmasked-prob {cfg.leave_unmasked_prob} and --random-token-prob {cfg.random_token_prob} "
            "add up to more than 1"
        )
    if cfg.freq_weighted_replacement and cfg.random_token_prob == 0:
        raise UserError("--freq-weighted-replacement has no effect with --random-token-prob 0")
    if not 1 <= cfg.mask_multiple_length <= cfg.tokens_per_sample:
        raise UserError(
            f"--mask-multiple-length {cfg.mask_multiple_length} must be at least 1, and at most --tokens-per-sample "
            f"{cfg.tokens_per_sample}"
        )
    if not 0 <= cfg.mask_stdev <= cfg.tokens_per_sample:
        raise UserError(
            f"--mask-stdev {cfg.mask_stdev} must be at least 0, and at most --tokens-per-sample {cfg.tokens_per_sample}"
        )
    if cfg.ddp_timeout < 1:
        raise UserError(f"--ddp-timeout {cfg.ddp_timeout} must be at least 1 second")
    for name in ("effective_rank_interval", "freeze_encoder_updates"):
        if getattr(cfg, name) < 0:
            raise UserError(f"--{name.replace('_', '-')} {getattr(cfg, name)} must not be negative")


def check_masking(cfg: MaskedAutoencoderLMConfig, network: MaskedAutoencoderConfig):
    """Reject options of masking that contradict the network, or would have no effect."""
    fraction, others = cfg.mask_in_encoder, (cfg.leave_unmasked_prob, cfg.random_token_prob)
    if network.mask_states > 1 and any(others):
        raise UserError(
            f"--leave-unmasked-prob {others[0]} and --random-token-prob {others[1]} contradict --mask-states "
            f"{network.mask_states}, whose loss aligns the targets to <mask> tokens; both must be 0"
        )
    if fraction > 0 and network.mask_join is MaskJoin.embeddings:
        raise UserError(
            f"--mask-in-encoder {fraction} has no effect with --mask-join embeddings: the encoder sees every <mask>"
        )
    if fraction == 0 and network.reset_mask_states:
        raise UserError("--reset-mask-states has no effect with --mask-in-encoder 0: the encoder sees no <mask>")
