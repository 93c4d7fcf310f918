"""Loss for token classification: cross-entropy of the labels of words."""

import math

import torch.nn.functional as F
from fairseq.criterions import FairseqCriterion, register_criterion
from fairseq.logging import metrics

from mae_lm_fairseq.downstream.tagging.windows import IGNORED
from mae_lm_fairseq.pretrained.validation import WORD_HEAD


@register_criterion("token_classification")
class TokenClassificationCriterion(FairseqCriterion):
    """Cross-entropy at the first subword of each labelled word, averaged over words.

    Logs ``loss`` in bits per word and ``accuracy``, the percentage of words with the correct label.
    """

    def forward(self, model, sample: dict, reduce: bool = True):
        """Return the summed loss in nats, the number of words, and the values to log."""
        logits, _ = model(**sample["net_input"], features_only=True, classification_head_name=WORD_HEAD)
        is_labelled = sample["target"].ne(IGNORED)
        logits, target = logits[is_labelled].float(), sample["target"][is_labelled]
        loss = F.cross_entropy(logits, target, reduction="sum")
        return (
            loss,
            sample["nwords"],
            {
                "loss": loss.detach(),
                "correct": (logits.argmax(1) == target).sum(),
                "ntokens": sample["ntokens"],
                "nsentences": sample["nsentences"],
                "sample_size": sample["nwords"],
            },
        )

    @staticmethod
    def reduce_metrics(logging_outputs: list[dict]):
        """Log the averages over the words of all workers."""
        total = {key: sum(log.get(key, 0) for log in logging_outputs) for key in logging_outputs[0]}
        words = total["sample_size"]
        metrics.log_scalar("loss", total["loss"] / words / math.log(2), words, round=3)
        metrics.log_scalar("accuracy", 100 * total["correct"] / words, words, round=2)

    @staticmethod
    def logging_outputs_can_be_summed() -> bool:
        return True
