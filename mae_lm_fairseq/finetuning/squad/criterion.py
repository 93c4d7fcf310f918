"""Loss for SQuAD: cross-entropy of the start and end of the answer."""

import torch
import torch.nn.functional as F
from fairseq.criterions import register_criterion

from mae_lm_fairseq.checkpoints.validation import ANSWER_HEAD
from mae_lm_fairseq.finetuning.window_task import AccuracyCriterion


@register_criterion("question_answering")
class QuestionAnsweringCriterion(AccuracyCriterion):
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
        logits, _ = model(**sample["net_input"], features_only=True, classification_head_name=ANSWER_HEAD)
        is_padding = sample["net_input"]["src_tokens"].eq(self.pad)
        logits = logits.float().masked_fill(is_padding[..., None], -torch.inf)
        target = sample["target"]
        # Logits are [B, T, 2], targets [B, 2]; the mean of start and end is half of their sum.
        loss = F.cross_entropy(logits, target, reduction="sum") / 2
        correct = (logits.argmax(1) == target).all(1).sum()
        return self.outputs(loss, correct, len(target), sample)
