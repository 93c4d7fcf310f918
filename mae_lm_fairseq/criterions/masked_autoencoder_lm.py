"""The pretraining loss: cross-entropy at the predicted positions, or ExLM's over alignments."""

import math

from fairseq import utils
from fairseq.criterions import FairseqCriterion, register_criterion
from fairseq.logging import metrics

from mae_lm_fairseq.core.packing import restore


@register_criterion("masked_autoencoder_lm")
class MaskedAutoencoderLMCriterion(FairseqCriterion):
    """Masked language modelling loss with metrics; with one state per ``[MASK]``, fairseq's ``masked_lm``.

    Logs the cross-entropy in bits (``loss``), perplexity (``ppl``), accuracy on predicted tokens in per cent
    (``accuracy``), and the percentage of tokens that the encoder processes, averaged over its layers
    (``encoder_share``). With ``--mask-states`` above 1, ``loss`` is that of :mod:`~mae_lm_fairseq.core.alignment`, per
    target, and a prediction is that of the state which is the most likely one for the target; ``accuracy`` is logged in
    validation only.

    Computing the loss needs no host-device synchronisation if batches include their layout, as those of
    ``masked_autoencoder_lm`` do. For a batch without predicted tokens, loss and gradients are zero.
    """

    def __init__(self, task):
        super().__init__(task)
        self.pad = task.target_dictionary.pad()

    def forward(self, model, sample: dict, reduce: bool = True):
        """Return the summed loss in nats, the number of predicted tokens, and the values to log."""
        tokens, target = sample["net_input"]["src_tokens"], sample["target"]
        if "layout" in sample:
            layout = restore(sample["layout"])
            targets = target.flatten().index_select(0, layout.predicted.index)
        else:
            is_predicted = target.ne(self.pad)
            layout = model.layout_of(tokens, is_predicted, sample["net_input"].get("early_masks"))
            targets = target[is_predicted]
        loss, extra = model(tokens, method="masked_loss", layout=layout, targets=targets)
        sample_size = targets.numel()
        log = {
            "loss": loss.detach(),
            **({} if extra["correct"] is None else {"correct": extra["correct"]}),
            "encoder_tokens": extra["encoder_tokens"],
            "ntokens": sample["ntokens"],
            "nsentences": sample["nsentences"],
            "sample_size": sample_size,
        }
        if model.training and "flops" in sample:
            log["flops"] = sample["flops"]  # which the task logs
        return loss, sample_size, log

    @staticmethod
    def reduce_metrics(logging_outputs: list[dict]):
        """Log averages over the predicted tokens of all processes.

        Without predicted tokens the loss is NaN, with weight zero: fairseq would average -1 in if there were none.
        """
        total = {key: sum(log.get(key, 0) for log in logging_outputs) for key in logging_outputs[0]}
        predicted, tokens = total["sample_size"], total["ntokens"]
        loss = total["loss"] / predicted / math.log(2) if predicted > 0 else math.nan
        metrics.log_scalar("loss", loss, predicted, round=3)
        metrics.log_derived("ppl", lambda meters: utils.get_perplexity(meters["loss"].avg))
        if predicted > 0 and "correct" in total:
            metrics.log_scalar("accuracy", 100 * total["correct"] / predicted, predicted, round=2)
        if tokens > 0:
            metrics.log_scalar("encoder_share", 100 * total["encoder_tokens"] / tokens, tokens, round=1)

    @staticmethod
    def logging_outputs_can_be_summed() -> bool:
        return True
