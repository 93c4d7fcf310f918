"""Classes of ``transformers`` that a model can have: an encoder alone, or with the head of a task."""

from dataclasses import dataclass

from mae_lm_fairseq.checkpoints.validation import ANSWER_HEAD, SENTENCE_HEAD, WORD_HEAD
from mae_lm_fairseq.huggingface.names import Part


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
        has_labels: whether the configuration names the classes.
        joins_pairs: whether its input may be pairs of texts.
        reads_words: whether its input is lists of words.
    """

    ending: str
    part: Part | None = None
    outputs: tuple[str, ...] = ("logits",)
    task: str | None = None
    head: str = ""
    module: str = ""
    has_labels: bool = False
    joins_pairs: bool = False
    reads_words: bool = False


ENCODER = TaskClass("Model")
MASKED_LM = TaskClass("ForMaskedLM", Part.lm_head)
SENTENCES = TaskClass(
    "ForSequenceClassification",
    Part.classification_head,
    task="sentence_prediction",
    head=SENTENCE_HEAD,
    module="out_proj",
    has_labels=True,
    joins_pairs=True,
)
WORDS = TaskClass(
    "ForTokenClassification",
    Part.token_classification_head,
    task="token_classification",
    head=WORD_HEAD,
    module="classifier",
    has_labels=True,
    reads_words=True,
)
ANSWERS = TaskClass(
    "ForQuestionAnswering",
    Part.span_head,
    outputs=("start_logits", "end_logits"),
    task="question_answering",
    head=ANSWER_HEAD,
    module="qa_outputs",
    joins_pairs=True,
)
FINETUNED = (SENTENCES, WORDS, ANSWERS)
"""Classes with a head that fine-tuning trains."""
