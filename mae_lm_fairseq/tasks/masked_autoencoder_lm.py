"""The pretraining task: masking, and batches. What else training needs of it is in ``base.py``."""

import functools
from collections.abc import Callable

import numpy as np
from fairseq.data import Dictionary, RightPadDataset, SortDataset, data_utils
from fairseq.data.iterators import EpochBatchIterator
from fairseq.logging import metrics
from fairseq.tasks import register_task
from omegaconf import open_dict

from mae_lm_fairseq.core.packing import NEEDED_BY_SOME, BatchLayout
from mae_lm_fairseq.cost.flops import training_flops
from mae_lm_fairseq.models.mae_lm import MAELMModel
from mae_lm_fairseq.tasks.base import PretrainingTask
from mae_lm_fairseq.tasks.masking import EarlyMasksDataset, LayoutDataset, masked_pair, warn_of_long_words, word_starts
from mae_lm_fairseq.tasks.masking_rates import NumberedBatches, variable_rate
from mae_lm_fairseq.tasks.options import MaskedAutoencoderLMConfig, check_masking, check_options
from mae_lm_fairseq.tasks.splits import first_directory, load_sequences
from mae_lm_fairseq.text.tokenizer import MASK
from mae_lm_fairseq.text.tokenizer_files import find_tokenizer
from mae_lm_fairseq.utils.errors import UserError


@register_task("masked_autoencoder_lm", dataclass=MaskedAutoencoderLMConfig)
class MaskedAutoencoderLMTask(PretrainingTask):
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

    @classmethod
    def setup_task(cls, cfg: MaskedAutoencoderLMConfig, **kwargs) -> "MaskedAutoencoderLMTask":
        check_options(cfg)
        return super().setup_task(cfg, **kwargs)

    def load_dataset(self, split: str, epoch: int = 1, combine: bool = False, **kwargs):
        """Load a split; of sharded data, the shard of ``epoch``.

        Batches have the layouts that the models built so far need; all layouts if there is no model yet.

        Raises:
            UserError: if the split is missing, truncated, or of another dictionary.
        """
        sequences = load_sequences(self.cfg, self.dictionary, split, epoch, combine)
        starts = self._word_starts() if self.cfg.mask_whole_words else None
        if starts is not None:
            warn_of_long_words(sequences, starts, self.cfg.mask_prob / self.cfg.mask_multiple_length)
        source, target = masked_pair(
            sequences,
            self.dictionary,
            self.rate,
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
        pad = self.dictionary.pad()
        dataset = self._regular_dataset(source, RightPadDataset(target, pad_idx=pad))
        if self.cfg.mask_in_encoder > 0:
            dataset = EarlyMasksDataset(dataset, self.mask_idx, self.cfg.mask_in_encoder, self.cfg.seed)
        needs = NEEDED_BY_SOME if self.layout_needs is None else self.layout_needs
        dataset = LayoutDataset(dataset, pad, self.mask_idx, needs, self.flops)
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
            ordered = functools.partial(EpochBatchIterator.ordered_batches, iterator)
            iterator.ordered_batches = lambda *args: NumberedBatches(ordered(*args), updates, per_update)

    def build_model(self, cfg, from_checkpoint: bool = False):
        model = super().build_model(cfg, from_checkpoint)
        if isinstance(model, MAELMModel):
            check_masking(self.cfg, model.autoencoder.config)
            self.layout_needs = (self.layout_needs or frozenset()) | model.autoencoder.needs()
            self.flops = functools.partial(training_flops, model.autoencoder.config, len(self.dictionary))
        return model

    def reduce_metrics(self, logging_outputs: list[dict], criterion):
        """Log the metrics of any training; ``mask_prob``, if the masking rate is not always the same."""
        super().reduce_metrics(logging_outputs, criterion)
        if self.rate is not None:
            predicted, tokens = (
                sum(log.get(name, 0) for log in logging_outputs) for name in ("sample_size", "ntokens")
            )
            metrics.log_scalar("mask_prob", predicted / max(tokens, 1), tokens, round=4)
