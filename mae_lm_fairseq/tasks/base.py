"""Base of the pretraining task: checks of models and checkpoints, freezing, metrics; all but masked batches."""

import math
import shlex
from pathlib import Path

from fairseq.data import Dictionary
from fairseq.tasks.masked_lm import MaskedLMTask
from fairseq.utils import split_paths

from mae_lm_fairseq import PACKAGE
from mae_lm_fairseq.fairseq_patches.resuming import load_mapped
from mae_lm_fairseq.models.mae_lm import MAELMModel
from mae_lm_fairseq.tasks.monitoring import RankMonitor, log_throughput, monitored_texts, peak_flops
from mae_lm_fairseq.tasks.options import MaskedAutoencoderLMConfig
from mae_lm_fairseq.tasks.splits import load_dictionary, load_sequences
from mae_lm_fairseq.text.data_bin import dictionary_fingerprint, unigram_entropy
from mae_lm_fairseq.utils.errors import UserError


class PretrainingTask(MaskedLMTask):
    """fairseq's ``masked_lm`` with hooks that its trainer calls around an update."""

    def __init__(self, cfg: MaskedAutoencoderLMConfig, dictionary: Dictionary | None = None):
        super().__init__(cfg, dictionary)
        self.peak_flops: float | None = None
        self.ranks: RankMonitor | None = None

    @classmethod
    def load_dict(cls, cfg: MaskedAutoencoderLMConfig) -> Dictionary:
        return load_dictionary(cfg)

    def build_model(self, cfg, from_checkpoint: bool = False):
        model = super().build_model(cfg, from_checkpoint)
        if model.max_positions() is not None and self.cfg.tokens_per_sample > model.max_positions():
            raise UserError(
                f"--tokens-per-sample {self.cfg.tokens_per_sample} is more than the model's "
                f"--max-positions {model.max_positions()}; lower it or raise the latter"
            )
        if not isinstance(model, MAELMModel):
            for option in ("mask_in_encoder", "effective_rank_interval", "freeze_encoder_updates"):
                if getattr(self.cfg, option):
                    name = option.replace("_", "-")
                    raise UserError(f"--{name} is for models of mae_lm_fairseq; choose such an --arch")
        return model

    def begin_epoch(self, epoch: int, model):
        """Set up the rank monitor and find the device's peak. Called before the first update and after resuming.

        Raises:
            UserError: if ``--effective-rank-interval`` is set and the data has no split ``valid``.
        """
        super().begin_epoch(epoch, model)
        # In every process, so that all of them stop if the split is missing.
        if self.cfg.effective_rank_interval > 0 and self.ranks is None:
            cfg, special = self.cfg, [self.dictionary.bos(), self.dictionary.eos()]
            texts = monitored_texts(load_sequences(cfg, self.dictionary, "valid", epoch=1, combine=False))
            settings = cfg.mask_in_encoder, cfg.effective_rank_interval
            self.ranks = RankMonitor(texts, self.dictionary.pad(), self.mask_idx, special, *settings)
        self.peak_flops = peak_flops(model)

    def train_step(self, sample, model, criterion, optimizer, update_num: int, ignore_grad: bool = False):
        outputs = super().train_step(sample, model, criterion, optimizer, update_num, ignore_grad)
        self._drop_frozen_gradients(model, update_num)
        return outputs

    def _drop_frozen_gradients(self, model, update_num: int):
        """Remove the gradients of a frozen encoder: neither clipping nor the optimizer sees parameters without one.

        Called before every step, too, because of several processes ``legacy_ddp`` makes them zero.
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
        """Log the criterion's metrics and the throughput."""
        super().reduce_metrics(logging_outputs, criterion)
        log_throughput(logging_outputs, self.peak_flops)

    @classmethod
    def closing_summary(cls, cfg) -> str:
        """Return in words what a training has reached, where it is, and what can be done next."""
        save_dir, data = Path(cfg.checkpoint.save_dir), split_paths(cfg.task.data)[0]
        paths = (save_dir / f"checkpoint_{name}{cfg.checkpoint.checkpoint_suffix}.pt" for name in ("best", "last"))
        path = None if cfg.checkpoint.no_save else next(filter(Path.exists, paths), None)
        if path is None:
            return "training has ended; no checkpoint was saved"
        state = load_mapped(path)
        lines = [f"training has ended; {path} is from update {state['optimizer_history'][-1]['num_updates']:,}"]
        best, split = state["extra_state"].get("best"), Path(data, cfg.dataset.valid_subset.split(",")[0])
        # The loss of several states for each mask is that of all targets together.
        is_of_tokens = cfg.checkpoint.best_checkpoint_metric == "loss" and getattr(cfg.model, "mask_states", 1) == 1
        if best is not None and is_of_tokens and split.with_suffix(".bin").exists():
            lines.append(
                f"best validation loss: {best * math.log(2):.3f} nats; unigram entropy, the loss without a look at the "
                f"context: {unigram_entropy(split):.3f} nats"
            )
        program = ["mae-lm"]
        if (user_dir := Path(cfg.common.user_dir or PACKAGE).resolve()) != PACKAGE:  # a decoder may be registered there
            code = f"import {user_dir.name}; from mae_lm_fairseq.cli import main; main()"
            program = ["env", f"PYTHONPATH={user_dir.parent}", "python", "-c", code]
        return "\n".join(
            [*lines, f"next: {shlex.join([*program, 'bundle', str(path), '--data-bin', data])} --out BUNDLE"]
        )

    def state_dict(self) -> dict:
        """Return the task state for checkpoints: the fingerprint of the dictionary."""
        return {"dictionary": dictionary_fingerprint(self.dictionary.symbols)}

    def load_state_dict(self, state_dict: dict):
        """Check the dictionary of a model that is loaded outside of training. No state is restored.

        Raises:
            UserError: if the model was trained with another one.
        """
        if state_dict.get("dictionary") not in (None, dictionary_fingerprint(self.dictionary.symbols)):
            raise UserError(
                f"the model was trained with another dictionary than the dict.txt of {self.cfg.data}; prepare the data "
                "with that model's tokenizer (mae-lm prepare --tokenizer)"
            )
