"""Classes of ``transformers`` that a model can have: an encoder alone, or with the head of a task."""

from dataclasses import dataclass

from mae_lm_fairseq.trained.huggingface.names import Part
from mae_lm_fairseq.wrapped.heads import HEAD_KINDS


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
    part: str | None = None
    outputs: tuple[str, ...] = ("logits",)
    task: str | None = None
    head: str = ""
    module: str = ""


ENCODER = TaskClass("Model")
MASKED_LM = TaskClass("ForMaskedLM", Part.lm_head)
FINETUNED = [
    TaskClass(kind.ending, kind.ending, kind.outputs, kind.task, kind.name, kind.output_layer) for kind in HEAD_KINDS
]
"""Classes with a head that fine-tuning trains."""
SENTENCES, WORDS, ANSWERS, *_ = FINETUNED
