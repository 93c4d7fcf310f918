"""Import an encoder, to pretrain it further, to fine-tune it, or to analyse it.

Reads a directory of Hugging Face's transformers with an encoder of one of the types in docs/hugging-face.md (BERT,
RoBERTa, ModernBERT, DeBERTa, ELECTRA, ...), or a checkpoint of fairseq's RoBERTa with its dict.txt. --out becomes a
bundle, which every command takes as a model, and which can be named as the tokenizer or data-bin. mae-lm export writes
the class of transformers that the model came from. No code is run from the files that are read.

Example:
    mae-lm import ./roberta-base --out imported
"""

from dataclasses import dataclass
from typing import Annotated, Literal

from mae_lm_fairseq.core.config import PRESETS
from mae_lm_fairseq.trained.bundle import write_bundle
from mae_lm_fairseq.trained.huggingface.importer import import_foreign, notes, usage
from mae_lm_fairseq.trained.huggingface.model_card import add_tokenizer_and_card
from mae_lm_fairseq.trained.reading import check_model_exists
from mae_lm_fairseq.utils.command_line import Argument, Directory, Model, Options as Base


@dataclass(frozen=True, kw_only=True)
class Options(Base):
    """An encoder to import.

    Attributes:
        model: directory of ``transformers``, or checkpoint of fairseq's RoBERTa.
        out: output directory, which must not exist.
        preset: preset of the network; ``mae_lm_roberta`` predicts as the original does, the others after further
            training.
        data_bin: directory of dict.txt, for a checkpoint (default: the checkpoint's).
        seed: seed of the weights that are missing, such as a head's.
    """

    model: Model
    out: Directory
    preset: Literal[tuple(PRESETS)] = "mae_lm_roberta"
    data_bin: Directory | None = None
    seed: Annotated[int, Argument("N")] = 1


def main(options: Options) -> None:
    """Import the model and print what it can be used for."""
    check_model_exists(options.model)
    pretrained = import_foreign(options.model, options.preset, options.data_bin, options.seed)
    write_bundle(pretrained, options.out, add_tokenizer_and_card)
    for note in notes(options.model):
        print(note)
    print(f"{options.out} is written. {usage(pretrained, options.out)}")
