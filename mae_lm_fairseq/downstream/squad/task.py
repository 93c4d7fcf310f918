"""fairseq task for SQuAD: find the answer to a question in a text, or report that it has none."""

import logging
from dataclasses import dataclass, field
from pathlib import Path

from fairseq.data import Dictionary
from fairseq.dataclass import FairseqDataclass
from fairseq.models import BaseFairseqModel
from fairseq.tasks import FairseqTask, register_task
from omegaconf import II, MISSING

from mae_lm_fairseq.downstream.squad.files import read_squad
from mae_lm_fairseq.downstream.squad.windows import DOC_STRIDE, HEAD, MIN_SAMPLE, TOKENS_PER_SAMPLE, SpanWindows
from mae_lm_fairseq.models.mae_lm import MAELMModel
from mae_lm_fairseq.text.pretrained_tokenizer import open_tokenizer
from mae_lm_fairseq.utils.errors import UserError

logger = logging.getLogger(__name__)


@dataclass
class QuestionAnsweringConfig(FairseqDataclass):
    """Questions, tokenizer and window lengths of SQuAD; the defaults are BERT's and RoBERTa's."""

    data: str = field(default=MISSING, metadata={"help": "data-bin of pretraining, with tokenizer and dictionary"})
    train_file: str = field(default=MISSING, metadata={"help": "training questions in SQuAD's JSON"})
    valid_file: str = field(default=MISSING, metadata={"help": "questions for validation in SQuAD's JSON"})
    version_2: bool = field(default=False, metadata={"help": "SQuAD 2.0: questions may have no answer"})
    tokens_per_sample: int = field(
        default=TOKENS_PER_SAMPLE, metadata={"help": "maximum length of a sequence in tokens, special tokens included"}
    )
    doc_stride: int = field(
        default=DOC_STRIDE,
        metadata={"help": "tokens between the starts of two windows of a long context"},
    )
    seed: int = II("common.seed")


@register_task("question_answering", dataclass=QuestionAnsweringConfig)
class QuestionAnsweringTask(FairseqTask):
    """Span prediction on SQuAD 1.1 and 2.0, with the tokenizer of the pretrained model.

    Sequences are built in memory from the JSON files. In windows that do not contain the answer, start and end are
    ``<s>``, for both 1.1 and 2.0 (BERT's recipe).
    """

    def __init__(self, cfg: QuestionAnsweringConfig):
        super().__init__(cfg)
        self.tokenizer = open_tokenizer(Path(cfg.data))
        self.dictionary = Dictionary()
        for piece in self.tokenizer.pieces:
            self.dictionary.add_symbol(piece)
        self.dictionary.add_symbol("<mask>")

    @classmethod
    def setup_task(cls, cfg: QuestionAnsweringConfig, **kwargs) -> "QuestionAnsweringTask":
        if cfg.tokens_per_sample < MIN_SAMPLE:
            raise UserError(f"--tokens-per-sample {cfg.tokens_per_sample} must be at least {MIN_SAMPLE}")
        if cfg.doc_stride < 1:
            raise UserError(f"--doc-stride {cfg.doc_stride} must be at least 1")
        return cls(cfg)

    def load_dataset(self, split: str, **kwargs):
        """Load the questions of ``train`` or ``valid``.

        Raises:
            UserError: if the split does not exist, or its file is missing or not in SQuAD's format.
        """
        paths = {"train": self.cfg.train_file, "valid": self.cfg.valid_file}
        if split not in paths:
            raise UserError(f"question_answering has no split {split}, only train and valid")
        path = paths[split]
        questions = read_squad(path, self.cfg.version_2)
        dataset = SpanWindows(questions, self.tokenizer, self.cfg.tokens_per_sample, self.cfg.doc_stride, self.cfg.seed)
        logger.info("%s: %s", path, ", ".join(f"{name}: {count}" for name, count in dataset.counts.items()))
        self.datasets[split] = dataset

    def build_model(self, cfg, from_checkpoint: bool = False) -> BaseFairseqModel:
        model = super().build_model(cfg, from_checkpoint)
        if not isinstance(model, MAELMModel):
            raise UserError("--task question_answering is for the architectures mae_lm_*")
        if self.cfg.tokens_per_sample > model.max_positions():
            raise UserError(
                f"--tokens-per-sample {self.cfg.tokens_per_sample} is more than the model's --max-positions "
                f"{model.max_positions()}; lower it"
            )
        model.register_span_head(HEAD)
        return model

    def max_positions(self) -> int:
        return self.cfg.tokens_per_sample

    @property
    def source_dictionary(self) -> Dictionary:
        return self.dictionary

    @property
    def target_dictionary(self) -> Dictionary:
        return self.dictionary
