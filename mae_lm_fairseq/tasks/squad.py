"""fairseq task and loss for SQuAD: find the answer to a question in a text, or report that it has none."""

from dataclasses import dataclass, field
from pathlib import Path

import torch
import torch.nn.functional as F
from fairseq.criterions import register_criterion
from fairseq.dataclass import FairseqDataclass
from fairseq.tasks import register_task
from omegaconf import II, MISSING

from mae_lm_fairseq.models.mae_lm import MAELMModel
from mae_lm_fairseq.tasks.windows import AccuracyCriterion, WindowTask
from mae_lm_fairseq.text.span_windows import DOC_STRIDE, TOKENS_PER_SAMPLE, SpanWindows
from mae_lm_fairseq.text.squad import read_squad
from mae_lm_fairseq.text.tokenizer import PAD
from mae_lm_fairseq.trained.validation import ANSWER_HEAD
from mae_lm_fairseq.wrapped.heads import ANSWERS


@dataclass
class QuestionAnsweringConfig(FairseqDataclass):
    """Questions, tokenizer and window lengths of SQuAD; the defaults are BERT's and RoBERTa's."""

    data: str = field(default=MISSING, metadata={"help": "data-bin of pretraining, with tokenizer and dictionary"})
    train_file: str = field(default=MISSING, metadata={"help": "training questions in SQuAD's JSON"})
    valid_file: str = field(default=MISSING, metadata={"help": "questions for validation in SQuAD's JSON"})
    version_2: bool = field(default=False, metadata={"help": "SQuAD 2.0: questions may have no answer"})
    skip_malformed: bool = field(default=False, metadata={"help": "drop malformed questions"})
    tokens_per_sample: int = field(
        default=TOKENS_PER_SAMPLE, metadata={"help": "maximum length of a sequence in tokens, special tokens included"}
    )
    doc_stride: int = field(
        default=DOC_STRIDE, metadata={"help": "tokens between the starts of two windows of a long context"}
    )
    seed: int = II("common.seed")


@register_task("question_answering", dataclass=QuestionAnsweringConfig)
class QuestionAnsweringTask(WindowTask):
    """Span prediction on SQuAD 1.1 and 2.0, with the tokenizer of the pretrained model.

    Sequences are built in memory from the JSON files. In windows that do not contain the answer, start and end are
    ``<s>``, for both 1.1 and 2.0 (BERT's recipe).
    """

    def read(self, path: Path) -> SpanWindows:
        questions = read_squad(path, self.cfg.version_2, skip_malformed=self.cfg.skip_malformed)
        return SpanWindows(questions, self.tokenizer, self.cfg.tokens_per_sample, self.cfg.doc_stride, self.cfg.seed)

    def register_head(self, model: MAELMModel):
        model.register_head(ANSWERS, labels=2)


@register_criterion("question_answering")
class QuestionAnsweringCriterion(AccuracyCriterion):
    """Mean of the start and end cross-entropies over the tokens of a sequence.

    Logs ``loss`` in bits and ``accuracy``, the percentage of sequences with correct start and end. The loss is that of
    Hugging Face's question answering models, except that padding is excluded, so that the loss of a sequence does not
    depend on the rest of the batch.
    """

    def forward(self, model, sample: dict, reduce: bool = True):
        """Return the summed loss in nats, the number of sequences, and the values to log."""
        logits, _ = model(**sample["net_input"], features_only=True, classification_head_name=ANSWER_HEAD)
        is_padding = sample["net_input"]["src_tokens"].eq(PAD)
        logits = logits.float().masked_fill(is_padding[..., None], -torch.inf)
        target = sample["target"]
        # Logits are [B, T, 2], targets [B, 2]; the mean of start and end is half of their sum.
        loss = F.cross_entropy(logits, target, reduction="sum") / 2
        correct = (logits.argmax(1) == target).all(1).sum()
        return self.outputs(loss, correct, len(target), sample)
