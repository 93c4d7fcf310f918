"""Classes of ``transformers`` that a model can have: an encoder alone, or with the head of a task."""

from dataclasses import dataclass

from mae_lm_fairseq.trained.huggingface.names import Part
from mae_lm_fairseq.trained.validation import ANSWER_HEAD, SENTENCE_HEAD, WORD_HEAD


@dataclass(frozen=True)
class TaskClass:
    """The classes of all families for one task.

    Attributes:
        ending: end of their names.
        part: the head; None for an encoder alone.
        outputs: names of the head's outputs.
        task: fairseq's task with such a head.
        head: our name of the head of an imported model.
        module: last module of the head; its weights have one row per class.
    """

    ending: str
    part: Part | None = None
    outputs: tuple[str, ...] = ("logits",)
    task: str | None = None
    head: str = ""
    module: str = ""


ENCODER = TaskClass("Model")
MASKED_LM = TaskClass("ForMaskedLM", Part.lm_head)
SENTENCES = TaskClass(
    "ForSequenceClassification",
    Part.classification_head,
    task="sentence_prediction",
    head=SENTENCE_HEAD,
    module="out_proj",
)
WORDS = TaskClass(
    "ForTokenClassification",
    Part.token_classification_head,
    task="token_classification",
    head=WORD_HEAD,
    module="classifier",
)
ANSWERS = TaskClass(
    "ForQuestionAnswering",
    Part.span_head,
    outputs=("start_logits", "end_logits"),
    task="question_answering",
    head=ANSWER_HEAD,
    module="qa_outputs",
)
FINETUNED = (SENTENCES, WORDS, ANSWERS)
"""Classes with a head that fine-tuning trains."""
