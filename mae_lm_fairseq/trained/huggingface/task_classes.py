"""Classes of ``transformers`` that a model can have: an encoder alone, or with the head of a task."""

from dataclasses import dataclass

from mae_lm_fairseq.core.config import MaskedAutoencoderConfig
from mae_lm_fairseq.trained.huggingface.names import Part, names_of
from mae_lm_fairseq.trained.validation import HEADS
from mae_lm_fairseq.wrapped.heads import HEAD_KINDS
from mae_lm_fairseq.wrapped.network import LM_HEAD


@dataclass(frozen=True)
class TaskClass:
    """The classes of all families for one task.

    Attributes:
        ending: end of their names.
        part: the head; None for an encoder alone.
        task: fairseq's task with such a head.
        head: our name of the head of an imported model.
        module: last module of the head; its weights have one row per class.
    """

    ending: str
    part: str | None = None
    task: str | None = None
    head: str = ""
    module: str = ""

    def names(self, naming: str, config: MaskedAutoencoderConfig, head: str) -> dict[str, str]:
        """Return the names elsewhere of the weights of a network and of its head, by ours; see :func:`names_of`."""
        parts = [Part.encoder]
        if self.part is not None:
            parts.append(self.part)
        if self.part is Part.lm_head and config.untie_output_weights:
            parts.append(Part.output_weights)
        return names_of(parts, naming, config.encoder_layers, head)

    def wrapped_head(self, head: str) -> str:
        """Return the prefix of our names of the weights of a wrapped head."""
        return f"{HEADS}{head}.{self.ending}." if head else LM_HEAD


ENCODER = TaskClass("Model")
MASKED_LM = TaskClass("ForMaskedLM", Part.lm_head)
FINETUNED = [
    TaskClass(kind.ending, kind.ending, task=kind.task, head=kind.name, module=kind.output_layer) for kind in HEAD_KINDS
]
"""Classes with a head that fine-tuning trains."""
SENTENCES, WORDS, ANSWERS, *_ = FINETUNED
