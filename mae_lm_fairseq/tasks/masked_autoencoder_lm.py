"""The pretraining task: masked batches, checks of models and checkpoints, freezing, metrics."""

import functools
import shlex
from collections.abc import Callable
from pathlib import Path

import numpy as np
from fairseq.data import Dictionary, RightPadDataset, SortDataset, data_utils
from fairseq.data.iterators import EpochBatchIterator
from fairseq.logging import metrics
from fairseq.tasks import TASK_REGISTRY, register_task
from fairseq.tasks.masked_lm import MaskedLMTask
from fairseq.utils import split_paths
from omegaconf import open_dict

from mae_lm_fairseq.core.packing import NEEDED_BY_SOME, BatchLayout
from mae_lm_fairseq.cost.flops import training_flops
from mae_lm_fairseq.fairseq_patches.resuming import saved_updates
from mae_lm_fairseq.models.mae_lm import MAELMModel
from mae_lm_fairseq.tasks.graphs import GraphedTraining, graphed_training
from mae_lm_fairseq.tasks.masking import EarlyMasksDataset, LayoutDataset, masked_pair, warn_of_long_words, word_starts
from mae_lm_fairseq.tasks.masking_rates import LossWeightsDataset, NumberedSequences, number_batches, variable_rate
from mae_lm_fairseq.tasks.monitoring import RankMonitor, log_throughput, monitored_texts, peak_flops
from mae_lm_fairseq.tasks.options import MaskedAutoencoderLMConfig, check_length, check_masking, check_options
from mae_lm_fairseq.tasks.splits import check_token_ids, first_directory, load_dictionary, load_sequences
from mae_lm_fairseq.text.data_bin import dictionary_fingerprint
from mae_lm_fairseq.text.tokenizer import MASK
from mae_lm_fairseq.text.tokenizer_files import find_tokenizer
from mae_lm_fairseq.utils.errors import UserError


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
        self.ranks: RankMonitor | None = None
        self.graphs: GraphedTraining | None = None

    @classmethod
    def setup_task(cls, cfg: MaskedAutoencoderLMConfig, **kwargs) -> "MaskedAutoencoderLMTask":
        check_options(cfg)
        return super().setup_task(cfg, **kwargs)

    @classmethod
    def check_data(cls, cfg: MaskedAutoencoderLMConfig) -> None:
        """Check the data once, in the first process of a training; raise a UserError if it is damaged."""
        check_token_ids(cfg)

    @classmethod
    def load_dict(cls, cfg: MaskedAutoencoderLMConfig) -> Dictionary:
        return load_dictionary(cfg)

    def load_dataset(self, split: str, epoch: int = 1, combine: bool = False, **kwargs):
        """Load a split; of sharded data, the shard of ``epoch``.

        Batches have the layouts that the models built so far need; all layouts if there is no model yet.

        Raises:
            UserError: if the split is missing, truncated, or of another dictionary.
        """
        sequences = load_sequences(self.cfg, self.dictionary, split, epoch, combine)
        starts = None
        if self.cfg.mask_whole_words:
            starts = self._word_starts()
            warn_of_long_words(sequences, starts, self.cfg.mask_prob / self.cfg.mask_multiple_length)
        source, target = masked_pair(
            sequences,
            self.dictionary,
            self.rate,
            self.cfg.mask_function,
            mask_idx=self.mask_idx,
            seed=self.cfg.seed,
            mask_prob=self.cfg.mask_prob,
            leave_unmasked_prob=self.cfg.leave_unmasked_prob,
            random_token_prob=self.cfg.random_token_prob,
            freq_weighted_replacement=self.cfg.freq_weighted_replacement,
            mask_whole_words=starts,
            mask_multiple_length=self.cfg.mask_multiple_length,
            mask_stdev=self.cfg.mask_stdev,
        )
        if self.cfg.mask_function is not None:
            source.check()
            target.check()
        pad = self.dictionary.pad()
        dataset = self._regular_dataset(source, RightPadDataset(target, pad_idx=pad))
        if self.rate is not None:
            dataset = NumberedSequences(dataset, masked=(source, target))
            if self.rate.weights_loss:
                dataset = LossWeightsDataset(dataset, self.rate)
        if self.cfg.mask_in_encoder > 0:
            dataset = EarlyMasksDataset(dataset, self.mask_idx, self.cfg.mask_in_encoder, self.cfg.seed)
        needs = NEEDED_BY_SOME if self.layout_needs is None else self.layout_needs
        fixed_sizes = None
        if self.graphs is not None and split == self.cfg.train_subset:
            fixed_sizes = self.graphs.fixed_sizes
        dataset = LayoutDataset(dataset, pad, self.mask_idx, needs, self.flops, fixed_sizes)
        with data_utils.numpy_seed(self.cfg.seed):
            shuffle = np.random.permutation(len(sequences))
        self.datasets[split] = SortDataset(dataset, sort_order=[shuffle, sequences.sizes])

    def _word_starts(self):
        tokenizer = find_tokenizer(first_directory(self.cfg))
        if tokenizer is not None and [*tokenizer.symbols, MASK] != self.dictionary.symbols:
            raise UserError(
                f"--mask-whole-words: {tokenizer.path} does not belong to the dict.txt beside it; restore the "
                "tokenizer of the data"
            )
        return word_starts(self.dictionary, tokenizer)

    def number_batches(self, iterator: EpochBatchIterator, updates: int, per_update: int):
        """Tell the sequences of the next epoch which update trains on them, for masking rates that are not fixed.

        Called by the patched trainer before it begins or continues an epoch, after a number of ``updates``;
        ``per_update`` is the number of batches per update of one process.
        """
        if self.rate is not None:
            number_batches(iterator, updates, per_update)

    def build_model(self, cfg, from_checkpoint: bool = False):
        model = super().build_model(cfg, from_checkpoint)
        check_length(self.cfg, model.max_positions())
        if isinstance(model, MAELMModel):
            self._take_needs_of(model)
            return model
        for option in ("mask_in_encoder", "effective_rank_interval", "freeze_encoder_updates", "cuda_graphs"):
            if getattr(self.cfg, option):
                name = option.replace("_", "-")
                raise UserError(f"--{name} is for models of mae_lm_fairseq; choose such an --arch")
        return model

    def _take_needs_of(self, model: MAELMModel) -> None:
        """Let batches have the layouts that a model reads, and the FLOPs of training on them."""
        network = model.autoencoder
        check_masking(self.cfg, network.config)
        self.layout_needs = (self.layout_needs or frozenset()) | network.needs()
        if not network.config.wrapped:  # whose layers no formula here describes
            self.flops = functools.partial(training_flops, network.config, len(self.dictionary))
        if self.cfg.cuda_graphs:
            self.graphs = graphed_training(self.cfg, network, self.dictionary, self.mask_idx)

    def begin_epoch(self, epoch: int, model):
        """Set up the rank monitor and find the device's peak. Called before the first update and after resuming.

        Raises:
            UserError: if ``--effective-rank-interval`` is set and the data has no split ``valid``.
        """
        super().begin_epoch(epoch, model)
        # In every process, so that all of them stop if the split is missing.
        if self.cfg.effective_rank_interval > 0 and self.ranks is None:
            sequences = load_sequences(self.cfg, self.dictionary, "valid", epoch=1, combine=False)
            self.ranks = RankMonitor(
                monitored_texts(sequences),
                pad=self.dictionary.pad(),
                mask=self.mask_idx,
                keep=[self.dictionary.bos(), self.dictionary.eos()],
                mask_in_encoder=self.cfg.mask_in_encoder,
                interval=self.cfg.effective_rank_interval,
            )
        self.peak_flops = peak_flops(model)

    def train_step(self, sample, model, criterion, optimizer, update_num: int, ignore_grad: bool = False):
        if self.graphs is not None and not ignore_grad and self.graphs.covers(sample):
            return self.graphs.train_step(sample, model, criterion, optimizer)
        outputs = super().train_step(sample, model, criterion, optimizer, update_num, ignore_grad)
        self._drop_frozen_gradients(model, update_num)
        return outputs

    def _drop_frozen_gradients(self, model, update_num: int):
        """Remove the gradients of a frozen encoder: neither clipping nor the optimizer sees parameters without one.

        Also called before every step, because of several processes ``legacy_ddp`` makes them zero.
        """
        if update_num < self.cfg.freeze_encoder_updates:
            for parameter in model.autoencoder.encoder.parameters():
                parameter.grad = None

    def optimizer_step(self, optimizer, model, update_num: int):
        """Take an optimizer step and log the latest effective ranks; ``update_num`` does not count this step."""
        self._drop_frozen_gradients(model, update_num)
        super().optimizer_step(optimizer, model, update_num)
        if self.ranks is not None:
            self.ranks.after_update(update_num + 1, model.autoencoder.encoder)

    def reduce_metrics(self, logging_outputs: list[dict], criterion):
        """Log the metrics of the criterion, throughput, and ``mask_prob`` if the rate is not always the same."""
        super().reduce_metrics(logging_outputs, criterion)
        log_throughput(logging_outputs, self.peak_flops)
        if self.rate is not None:
            # fairseq's masked_lm divides by the predicted tokens, and does not log them apart.
            predicted = sum(log.get("predicted", log.get("sample_size", 0)) for log in logging_outputs)
            tokens = sum(log.get("ntokens", 0) for log in logging_outputs)
            metrics.log_scalar("mask_prob", predicted / max(tokens, 1), tokens, round=4)

    @classmethod
    def closing_summary(cls, cfg) -> str:
        """Return where a training has saved its best checkpoint, and what can be done with it next.

        With ``--keep-dir``, a last model there is named in place of the last checkpoint, which a study removes.
        """
        suffix = f"{cfg.checkpoint.checkpoint_suffix}.pt"
        paths = [Path(cfg.checkpoint.save_dir, f"checkpoint_{name}{suffix}") for name in ("best", "last")]
        if cfg.task.keep_dir:
            paths.insert(1, Path(cfg.task.keep_dir, f"{cfg.optimization.max_update}.pt"))
        saved = [path for path in paths if path.exists()]
        if cfg.checkpoint.no_save or not saved:
            return "training has ended; no checkpoint was saved"
        bundle = shlex.join(["mae-lm", "bundle", str(saved[0]), "--data-bin", split_paths(cfg.task.data)[0]])
        updates = saved_updates(saved[0])
        return f"training has ended; {saved[0]} is from update {updates:,}\nnext: {bundle} --out BUNDLE"

    def state_dict(self) -> dict:
        """Return the task state for checkpoints: the fingerprint of the dictionary."""
        return {"dictionary": dictionary_fingerprint(self.dictionary.symbols)}

    def load_state_dict(self, state_dict: dict):
        """Check the dictionary of a model that is loaded outside of training. No state is restored.

        Raises:
            UserError: if the model was trained with another one.
        """
        theirs = state_dict.get("dictionary")
        if theirs not in (None, dictionary_fingerprint(self.dictionary.symbols)):
            raise UserError(
                f"the model was trained with another dictionary than the dict.txt of {self.cfg.data}; prepare the data "
                "with that model's tokenizer (mae-lm prepare --tokenizer)"
            )


def check_task(cfg: MaskedAutoencoderLMConfig) -> None:
    """Raise a UserError if the options are those of another kind of task."""
    if not issubclass(TASK_REGISTRY[cfg._name], MaskedAutoencoderLMTask):
        parent = MaskedAutoencoderLMTask.__name__
        raise UserError(f"--task {cfg._name}: choose one of pretraining, which is derived from {parent}")


def try_mask_function(cfg: MaskedAutoencoderLMConfig) -> None:
    """Mask sequences of the validation split if ``--mask-function`` is set, as a training does at its start.

    Raises:
        UserError: if the function fails, or does not return masks.
    """
    if cfg.mask_function is not None:
        TASK_REGISTRY[cfg._name].setup_task(cfg).load_dataset("valid")
