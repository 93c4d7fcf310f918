"""Heads of tasks: a table of the kinds that fine-tuning trains, and the heads that ``transformers`` has for them."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from mae_lm_fairseq.core.config import MaskedAutoencoderConfig
from mae_lm_fairseq.core.heads import ClassificationHead, SpanHead, TokenClassificationHead
from mae_lm_fairseq.wrapped.network import stock_class, stock_config, take_apart


@dataclass(frozen=True, kw_only=True)
class HeadKind:
    """A kind of head.

    Attributes:
        name: name that a head of this kind has in a model, where its training gives it no other.
        module: class of the head in this package.
        task: fairseq's task that trains it.
        output_layer: last layer of the head, which has a row for each label.
        ending: end of the names of the classes of ``transformers`` with such a head.
        outputs: names of their outputs.
        sizes: arguments of ``module`` besides the hidden size and the standard deviation of the initial weights.
    """

    name: str
    module: type[nn.Module]
    task: str
    output_layer: str
    ending: str
    outputs: tuple[str, ...] = ("logits",)
    sizes: tuple[str, ...] = ()

    def build(
        self, config: MaskedAutoencoderConfig, labels: int, dropout: float = 0.0, inner_dim: int | None = None
    ) -> nn.Module:
        """Build a new head of this package.

        Args:
            labels: number of its outputs.
            dropout: probability of all of its dropout.
            inner_dim: output size of a hidden layer, if it has one (default: the hidden size).
        """
        dim = config.encoder_embed_dim
        values = {"num_classes": labels, "inner_dim": inner_dim or dim, "dropout": dropout}
        return self.module(dim, init_std=config.init_std, **{name: values[name] for name in self.sizes})


SENTENCES = HeadKind(
    name="sentence_classification_head",
    module=ClassificationHead,
    task="sentence_prediction",
    output_layer="out_proj",
    ending="ForSequenceClassification",
    sizes=("num_classes", "inner_dim", "dropout"),
)
WORDS = HeadKind(
    name="tags",
    module=TokenClassificationHead,
    task="token_classification",
    output_layer="classifier",
    ending="ForTokenClassification",
    sizes=("num_classes", "dropout"),
)
ANSWERS = HeadKind(
    name="span",
    module=SpanHead,
    task="question_answering",
    output_layer="qa_outputs",
    ending="ForQuestionAnswering",
    outputs=("start_logits", "end_logits"),
)
HEAD_KINDS = (SENTENCES, WORDS, ANSWERS)
"""The kinds of heads, for classification or regression of sentences, labels of words, and question answering."""


class WrappedTaskHead(nn.Module):
    """The head of a task as transformers has it for a type; the names of its weights begin with the class's ending.

    Args:
        config: configuration of the network.
        kind: the head of this package for the same task.
        labels: number of its outputs.
        dropout: probability of all of its dropout.
    """

    def __init__(self, config: MaskedAutoencoderConfig, kind: HeadKind, labels: int, dropout: float):
        super().__init__()
        # A sequence is classified by its first vector, as everywhere in this package.
        stock = stock_config(config.wrapped, num_labels=labels, classifier_pooling="cls")
        model = stock_class(config.wrapped, kind.ending)._from_config(stock)
        take_apart(model)
        for module in model.modules():
            if isinstance(module, nn.Dropout):
                module.p = dropout
        self.kind = kind
        self.replaces = kind.module
        self.labels = labels
        self.add_module(kind.ending, model)

    def forward(self, features: Tensor) -> Tensor:
        """Convert hidden states [B, T, dim] to logits, as this package's head of the same task."""
        output = getattr(self, self.kind.ending)(inputs_embeds=features)
        logits = [output[name] for name in self.kind.outputs]
        return logits[0] if len(logits) == 1 else torch.stack(logits, -1)
