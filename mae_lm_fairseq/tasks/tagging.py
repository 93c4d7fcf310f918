"""fairseq task and loss for token classification: part-of-speech tags, named entities and other labels of words."""

from dataclasses import dataclass, field
from pathlib import Path

import torch.nn.functional as F
from fairseq.criterions import register_criterion
from fairseq.dataclass import FairseqDataclass
from fairseq.tasks import register_task
from omegaconf import II, MISSING

from mae_lm_fairseq.models.mae_lm import MAELMModel
from mae_lm_fairseq.tasks.windows import AccuracyCriterion, WindowTask
from mae_lm_fairseq.text.word_files import read_words
from mae_lm_fairseq.text.word_labels import LabelSet, learn_labels
from mae_lm_fairseq.text.word_windows import IGNORED, WordWindows
from mae_lm_fairseq.trained.validation import WORD_HEAD
from mae_lm_fairseq.wrapped.heads import WORDS

TOKENS_PER_SAMPLE = 512
"""Maximum sequence length of BERT and RoBERTa, in tokens."""


@dataclass
class TokenClassificationConfig(FairseqDataclass):
    """Files of labelled words and tokenizer of token classification."""

    data: str = field(default=MISSING, metadata={"help": "data-bin of pretraining, with tokenizer and dictionary"})
    train_file: str = field(default=MISSING, metadata={"help": "training file: CoNLL-U, or columns"})
    valid_file: str = field(default=MISSING, metadata={"help": "file for validation, in one of these formats"})
    column: str = field(
        default=MISSING, metadata={"help": "column of the labels: its name in CoNLL-U, or its number, from 1"}
    )
    tokens_per_sample: int = field(
        default=TOKENS_PER_SAMPLE, metadata={"help": "maximum length of a sequence in tokens, special tokens included"}
    )
    seed: int = II("common.seed")


@register_task("token_classification", dataclass=TokenClassificationConfig)
class TokenClassificationTask(WindowTask):
    """Labels of words, with the tokenizer of the pretrained model.

    Sequences are built in memory from the files. The labels are those of the training file. They are part of the task's
    state, which fairseq keeps in checkpoints.
    """

    def __init__(self, cfg: TokenClassificationConfig, **kwargs):
        super().__init__(cfg, **kwargs)
        self.state.add_factory("labels", self._learn_labels)

    def _learn_labels(self) -> dict:
        labels = learn_labels(read_words(Path(self.cfg.train_file), self.cfg.column))
        return {"names": list(labels.names), "scheme": labels.scheme}

    @property
    def labels(self) -> LabelSet:
        """The labels that the model learns."""
        return LabelSet(tuple(self.state.labels["names"]), self.state.labels["scheme"])

    def read(self, path: Path) -> WordWindows:
        file = read_words(path, self.cfg.column)
        targets = self.labels.targets(file)
        return WordWindows(file.words, self.tokenizer, self.cfg.tokens_per_sample, self.cfg.seed, targets)

    def register_head(self, model: MAELMModel):
        model.register_head(WORDS, len(self.labels.names))


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
