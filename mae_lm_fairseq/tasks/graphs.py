"""Training with ``--cuda-graphs``: which trainings can, and forward and backward pass of their batches."""

import logging

import torch
from fairseq.data import Dictionary
from fairseq.optim import FairseqOptimizer
from torch import Tensor

from mae_lm_fairseq.core.autoencoder import MaskedAutoencoder
from mae_lm_fairseq.core.fixed_sizes import FixedSizes
from mae_lm_fairseq.core.graphs import GraphedStep
from mae_lm_fairseq.core.packing import batch_layout, to_device
from mae_lm_fairseq.criterions.masked_autoencoder_lm import MaskedAutoencoderLMCriterion, MaskedBatch
from mae_lm_fairseq.models.mae_lm import MAELMModel
from mae_lm_fairseq.tasks.masking_rates import variable_rate
from mae_lm_fairseq.tasks.options import MaskedAutoencoderLMConfig

logger = logging.getLogger(__name__)


class GraphedTraining:
    """Computes loss and gradients of batches with dummies by one graph per bucket.

    Args:
        fixed_sizes: the buckets.
        needs: layouts that the network reads.
    """

    def __init__(self, fixed_sizes: FixedSizes, needs: frozenset[str]):
        self.fixed_sizes = fixed_sizes
        self.needs = needs
        self.step: GraphedStep | None = None
        self.has_warned = False

    def covers(self, sample: dict) -> bool:
        """Return whether a batch has the sizes of a bucket."""
        if "bucket" not in sample and not self.has_warned:
            self.has_warned = True
            logger.info(
                "--cuda-graphs: a batch of %d sequences fits into no bucket; such batches run as without",
                len(sample["id"]),
            )
        return "bucket" in sample

    def train_step(
        self, sample: dict, model: MAELMModel, criterion: MaskedAutoencoderLMCriterion, optimizer: FairseqOptimizer
    ) -> tuple[Tensor, int, dict]:
        """Add the gradients of a batch; return what :meth:`FairseqTask.train_step` does."""
        model.train()
        batch = criterion.masked_batch(model, sample)
        if self.step is None:
            self.step = self._new_step(model, criterion, batch.src_tokens.device)
        loss, correct = self.step(sample["bucket"], batch, _begin_backward(optimizer))
        size, log = criterion.size_and_log(model, sample, batch, loss, correct)
        return loss, size, log

    def _new_step(
        self, model: MAELMModel, criterion: MaskedAutoencoderLMCriterion, device: torch.device
    ) -> GraphedStep:
        """Return the step, prepared for the largest bucket."""

        def masked_loss(batch: MaskedBatch) -> tuple[Tensor, Tensor]:
            return model.masked_loss(**batch._asdict())

        step = GraphedStep(masked_loss, model.parameters())
        if not step.captures:
            logger.info("--cuda-graphs: a rehearsal on %s: batches have dummies, and nothing is captured", device)
        largest = self.fixed_sizes.largest_batch()
        layout = batch_layout(
            largest.tokens,
            is_predicted=largest.target.ne(model.pad),
            pad=model.pad,
            mask=model.mask,
            needs=self.needs,
            width=largest.bucket.width,
        )
        sample = {
            "net_input": {"src_tokens": largest.tokens.to(device)},
            "target": largest.target.to(device),
            "layout": to_device(layout, device),
        }
        step.prepare(largest.bucket, criterion.masked_batch(model, sample))
        return step


def graphed_training(
    cfg: MaskedAutoencoderLMConfig, network: MaskedAutoencoder, dictionary: Dictionary, mask: int
) -> GraphedTraining | None:
    """Return the graphs of a training; None, with a warning, if it cannot have them."""
    problem = problem_of_graphs(cfg, network)
    if problem:
        logger.warning("--cuda-graphs has no effect with %s", problem)
        return None
    sizes = FixedSizes(
        rows=cfg.batch_size,
        width=cfg.tokens_per_sample,
        rate=cfg.mask_prob,
        kept=cfg.leave_unmasked_prob + cfg.random_token_prob,
        pad=dictionary.pad(),
        mask=mask,
        token=dictionary.nspecial,
    )
    return GraphedTraining(sizes, network.needs())


def problem_of_graphs(cfg: MaskedAutoencoderLMConfig, network: MaskedAutoencoder) -> str | None:
    """Return the option or property of a training because of which it cannot have graphs; None if it can."""
    has_processes = cfg.distributed_world_size > 1
    problems = {
        "batches of --max-tokens; add --batch-size": not cfg.batch_size,
        "masking rates that vary": variable_rate(cfg) is not None or cfg.mask_stdev > 0,
        f"--criterion {cfg.criterion}": cfg.criterion != "masked_autoencoder_lm",
        f"--mask-function {cfg.mask_function}": cfg.mask_function is not None,
        f"--mask-in-encoder {cfg.mask_in_encoder}": cfg.mask_in_encoder > 0,
        f"--freeze-encoder-updates {cfg.freeze_encoder_updates}": cfg.freeze_encoder_updates > 0,
        f"--mask-states {network.config.mask_states}": network.config.mask_states > 1,
        "a wrapped encoder": bool(network.config.wrapped),
        "--checkpoint-activations": any(stack.checkpoint_activations for stack in network.stacks()),
        "--amp": cfg.amp,
        f"--ddp-backend {cfg.ddp_backend} of several processes; choose legacy_ddp": has_processes
        and cfg.ddp_backend not in ("legacy_ddp", "no_c10d"),
    }
    return next((problem for problem, exists in problems.items() if exists), None)


def _begin_backward(optimizer: FairseqOptimizer) -> float:
    """Return the factor of the loss, and announce gradients, as the backward pass of fairseq's fp16 optimizers does."""
    if hasattr(optimizer, "_needs_sync"):
        optimizer._needs_sync = True
    scaler = getattr(optimizer, "scaler", None)
    return 1.0 if scaler is None else scaler.loss_scale
