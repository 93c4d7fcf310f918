"""Export a pretrained or fine-tuned model for Hugging Face's transformers.

The encoder becomes a stock MPNet or RoBERTa, or the class that it was imported from, without code of this package:
AutoModel and AutoTokenizer load the directory, which also has a model card. It is written only if token ids, hidden
states and predictions are the original's on text of several scripts. The decoder is not exported; mae-lm bundle keeps
it.

Examples:
    mae-lm export bundles/mae_lm --out mae-lm-hf
    mae-lm export checkpoints/mae_lm/checkpoint_last.pt --data-bin data-bin --out mae-lm-hf
"""

from dataclasses import dataclass
from typing import Literal

from mae_lm_fairseq.text.text_samples import read_text
from mae_lm_fairseq.trained.huggingface.exporter import export_stock, sentence_files
from mae_lm_fairseq.trained.opening import open_pretrained
from mae_lm_fairseq.utils.command_line import Directory, File, Model, Options as Base
from mae_lm_fairseq.utils.errors import UserError


@dataclass(frozen=True, kw_only=True)
class Options(Base):
    """A model to export to ``transformers``.

    Attributes:
        model: bundle, or checkpoint of fairseq-train.
        data_bin: data-bin of a checkpoint, with dictionary and tokenizer.
        ema: use the checkpoint's EMA weights (``--store-ema``).
        out: output directory, which must not exist.
        text: text file whose lines are also compared.
        pooling: vector of a text for sentence-transformers: the mean of the hidden states, or the first one (default:
            that of an imported model, if it has one).
    """

    model: Model
    data_bin: Directory | None = None
    ema: bool = False
    out: Directory
    text: File | None = None
    pooling: Literal["mean", "cls"] | None = None


def main(options: Options) -> None:
    """Export the model and print a summary."""
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()
    pretrained = open_pretrained(options.model, options.data_bin, options.ema)
    if options.text and pretrained.tokenizer is None:
        raise UserError(
            f"--text {options.text}: {options.model} has no tokenizer, and is compared on random ids; remove --text"
        )
    lines = []
    if options.text:
        lines = [line for line in read_text(options.text) if line]
    written = export_stock(pretrained, options.out, lines, options.pooling)
    if options.pooling and (replaced := sentence_files(pretrained)):
        print(f"--pooling {options.pooling}: not exported are the imported model's {', '.join(replaced)}")
    print(f"{options.out}: {written}, compared with the original")
