"""The loss of SQuAD: where the answer starts, and where it ends."""

import math

import torch
import torch.nn.functional as F
from fairseq.criterions import FairseqCriterion, register_criterion
from fairseq.logging import metrics

from mae_lm_fairseq.downstream.squad.windows import HEAD


@register_criterion("question_answering")
class QuestionAnsweringCriterion(FairseqCriterion):
    """The mean of the cross-entropies of start and end over the tokens of a sample, in bits (``loss``), and how many
    samples have both right (``accuracy``, per cent).

    The loss is that of Hugging Face's models for question answering, but that padding is never an answer, so that it
    does not depend on what else is in a batch.
    """

    def __init__(self, task):
        super().__init__(task)
        self.pad = task.source_dictionary.pad()

    def forward(self, model, sample: dict, reduce: bool = True):
        """The summed loss in nats, the number of samples, and what to log."""
        logits, _ = model(**sample["net_input"], features_only=True, classification_head_name=HEAD)
        is_padding = sample["net_input"]["src_tokens"].eq(self.pad)
        logits = logits.float().masked_fill(is_padding[..., None], -torch.inf)
        target = sample["target"]
        # [B, T, 2] against [B, 2]: the mean of both is half of their sum.
        loss = F.cross_entropy(logits, target, reduction="sum") / 2
        return (
            loss,
            len(target),
            {
                "loss": loss.detach(),
                "correct": (logits.argmax(1) == target).all(1).sum(),
                "ntokens": sample["ntokens"],
                "nsentences": sample["nsentences"],
                "sample_size": len(target),
            },
        )

    @staticmethod
    def reduce_metrics(logging_outputs: list[dict]):
        """Log the averages over the samples of all processes."""
        total = {key: sum(log.get(key, 0) for log in logging_outputs) for key in logging_outputs[0]}
        samples = total["sample_size"]
        metrics.log_scalar("loss", total["loss"] / samples / math.log(2), samples, round=3)
        metrics.log_scalar("accuracy", 100 * total["correct"] / samples, samples, round=2)

    @staticmethod
    def logging_outputs_can_be_summed() -> bool:
        return True
