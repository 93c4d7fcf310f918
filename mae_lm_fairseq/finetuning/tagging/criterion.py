"""Loss for token classification: cross-entropy of the labels of words."""

import torch.nn.functional as F
from fairseq.criterions import register_criterion

from mae_lm_fairseq.checkpoints.validation import WORD_HEAD
from mae_lm_fairseq.finetuning.tagging.windows import IGNORED
from mae_lm_fairseq.finetuning.window_task import AccuracyCriterion


@register_criterion("token_classification")
class TokenClassificationCriterion(AccuracyCriterion):
    """Cross-entropy at the first subword of each labelled word, averaged over words.

    Logs ``loss`` in bits per word and ``accuracy``, the percentage of words with the correct label.
    """

    def forward(self, model, sample: dict, reduce: bool = True):
        """Return the summed loss in nats, the number of words, and the values to log."""
        logits, _ = model(**sample["net_input"], features_only=True, classification_head_name=WORD_HEAD)
        is_labelled = sample["target"].ne(IGNORED)
        logits, target = logits[is_labelled].float(), sample["target"][is_labelled]
        loss = F.cross_entropy(logits, target, reduction="sum")
        correct = (logits.argmax(1) == target).sum()
        return self.outputs(loss, correct, sample["nwords"], sample)
