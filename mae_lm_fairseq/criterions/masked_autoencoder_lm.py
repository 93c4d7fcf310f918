"""The pretraining loss: cross-entropy at the predicted positions, or ExLM's over alignments."""

import math
from typing import NamedTuple

from fairseq import utils
from fairseq.criterions import FairseqCriterion, register_criterion
from fairseq.logging import metrics
from torch import Tensor

from mae_lm_fairseq.core.fixed_sizes import NO_DUMMIES, Counts
from mae_lm_fairseq.core.packing import BatchLayout, pack, restore


class MaskedBatch(NamedTuple):
    """The arguments of :meth:`~mae_lm_fairseq.trained.model.TrainedModel.masked_loss`."""

    src_tokens: Tensor
    layout: BatchLayout
    targets: Tensor
    loss_weights: Tensor | None


@register_criterion("masked_autoencoder_lm")
class MaskedAutoencoderLMCriterion(FairseqCriterion):
    """Masked language modelling loss with metrics; with one state per ``[MASK]``, fairseq's ``masked_lm``.

    Logs the cross-entropy in bits (``loss``), perplexity (``ppl``), accuracy on predicted tokens in per cent
    (``accuracy``), and the percentage of tokens that the encoder processes, averaged over its layers
    (``encoder_share``). With ``--mask-states`` above 1, ``loss`` is that of :mod:`~mae_lm_fairseq.core.alignment`, per
    target, and a prediction is that of the state which is the most likely one for the target; ``accuracy`` is logged in
    validation only.

    Batches with ``loss_weights`` [B], of ``--loss-weight inverse-rate``, have the loss of masked diffusion: the
    cross-entropies of a sequence are divided by its masking rate, and their sum by the number of all tokens. A sequence
    without predicted tokens adds only its tokens. The expected value is a bound of the negative log-likelihood per
    token, and ``ppl`` one of the perplexity.

    Computing the loss needs no host-device synchronisation if batches include their layout, as those of
    ``masked_autoencoder_lm`` do. For a batch without predicted tokens, loss and gradients are zero.
    """

    def __init__(self, task):
        super().__init__(task)
        self.pad = task.target_dictionary.pad()

    def forward(self, model, sample: dict, reduce: bool = True):
        """Return the summed loss in nats, the number of tokens to divide it by, and the values to log."""
        batch = self.masked_batch(model, sample)
        loss, correct = model(method="masked_loss", **batch._asdict())
        size, log = self.size_and_log(model, sample, batch, loss, correct)
        return loss, size, log

    def masked_batch(self, model, sample: dict) -> MaskedBatch:
        """Return what the loss of a batch is computed from; ``model`` computes the layout of a batch without one."""
        inputs = sample["net_input"]
        tokens = inputs["src_tokens"]
        target = sample["target"]
        if "layout" in sample:
            layout = restore(sample["layout"])
            targets = pack(target, layout.predicted)
        else:
            is_predicted = target.ne(self.pad)
            early_masks = inputs.get("early_masks")
            layout = model.layout_of(tokens, is_predicted, early_masks)
            targets = target[is_predicted]
        weights = _weights_of_positions(sample, layout)
        return MaskedBatch(tokens, layout, targets, weights)

    def size_and_log(
        self, model, sample: dict, batch: MaskedBatch, loss: Tensor, correct: Tensor | None
    ) -> tuple[int, dict]:
        """Return the number of tokens to divide the loss by, and the values to log; dummies do not count."""
        dummies = sample.get("dummies", NO_DUMMIES)
        dummies = Counts(*dummies)
        tokens = sample["ntokens"]
        predicted = batch.targets.numel() - dummies.predicted
        sample_size = predicted
        if batch.loss_weights is not None:
            sample_size = tokens
        log = {
            "loss": loss.detach(),
            "encoder_tokens": model.encoder_tokens(batch.layout, dummies),
            "ntokens": tokens,
            "nsentences": sample["nsentences"],
            "sample_size": sample_size,
            "predicted": predicted,
        }
        if correct is not None:
            log["correct"] = correct
        if model.training and "flops" in sample:
            log["flops"] = sample["flops"]  # which the task logs
        return sample_size, log

    @staticmethod
    def reduce_metrics(logging_outputs: list[dict]):
        """Log averages over the tokens of all processes.

        Without tokens to divide by, the loss is NaN, with weight zero: fairseq would average -1 in if there were none.
        """
        total = {key: sum(log.get(key, 0) for log in logging_outputs) for key in logging_outputs[0]}
        size = total["sample_size"]
        predicted = total["predicted"]
        tokens = total["ntokens"]
        loss = math.nan
        if size > 0:
            loss = total["loss"] / size / math.log(2)
        metrics.log_scalar("loss", loss, size, round=3)
        metrics.log_derived("ppl", lambda meters: utils.get_perplexity(meters["loss"].avg))
        if predicted > 0 and "correct" in total:
            accuracy = 100 * total["correct"] / predicted
            metrics.log_scalar("accuracy", accuracy, predicted, round=2)
        if tokens > 0:
            encoder_share = 100 * total["encoder_tokens"] / tokens
            metrics.log_scalar("encoder_share", encoder_share, tokens, round=1)

    @staticmethod
    def logging_outputs_can_be_summed() -> bool:
        return True


def _weights_of_positions(sample: dict, layout: BatchLayout) -> Tensor | None:
    """Return the weight of each predicted position, [number predicted] float32; None if all count alike."""
    if "loss_weights" not in sample:
        return None
    weights = sample["loss_weights"].float()
    return weights.index_select(0, layout.predicted.packed_rows())
