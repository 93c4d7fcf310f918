"""Loss for SQuAD: cross-entropy of the start and end of the answer."""

import math

import torch
import torch.nn.functional as F
from fairseq.criterions import FairseqCriterion, register_criterion
from fairseq.logging import metrics

from mae_lm_fairseq.downstream.squad.windows import HEAD


@register_criterion("question_answering")
class QuestionAnsweringCriterion(FairseqCriterion):
    """Mean of the start and end cross-entropies over the tokens of a sequence.

    Logs ``loss`` in bits and ``accuracy``, the percentage of sequences with correct start and end. The loss is that of
    Hugging Face's question answering models, except that padding is excluded, so that the loss of a sequence does not
    depend on the rest of the batch.
    """

    def __init__(self, task):
        super().__init__(task)
        self.pad = task.source_dictionary.pad()

    def forward(self, model, sample: dict, reduce: bool = True):
        """Return the summed loss in nats, the number of sequences, and the values to log."""
        logits, _ = model(**sample["net_input"], features_only=True, classification_head_name=HEAD)
        is_padding = sample["net_input"]["src_tokens"].eq(self.pad)
        logits = logits.float().masked_fill(is_padding[..., None], -torch.inf)
        target = sample["target"]
        # Logits are [B, T, 2], targets [B, 2]; the mean of start and end is half of their sum.
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
        """Log the averages over the sequences of all workers."""
        total = {key: sum(log.get(key, 0) for log in logging_outputs) for key in logging_outputs[0]}
        samples = total["sample_size"]
        metrics.log_scalar("loss", total["loss"] / samples / math.log(2), samples, round=3)
        metrics.log_scalar("accuracy", 100 * total["correct"] / samples, samples, round=2)

    @staticmethod
    def logging_outputs_can_be_summed() -> bool:
        return True
