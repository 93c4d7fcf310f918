"""Export a pretrained or fine-tuned model for Hugging Face's transformers.

The encoder becomes a stock MPNet or RoBERTa, or the class that it was imported from, without code of this package:
AutoModel and AutoTokenizer load the directory, which also has a model card. It is written only if token ids, hidden
states and predictions are the original's on text of several scripts. The decoder is not exported, unless
--with-decoder asks for it: then AutoModelForMaskedLM loads the whole model with trust_remote_code=True, from a file of
code in the directory.

Examples:
    mae-lm export bundles/mae_lm --out mae-lm-hf
    mae-lm export checkpoints/mae_lm/checkpoint_last.pt --data-bin data-bin --out mae-lm-hf
    mae-lm export bundles/mae_lm --with-decoder --out mae-lm-whole
"""

from dataclasses import dataclass
from typing import Literal

from mae_lm_fairseq.text.text_samples import read_text
from mae_lm_fairseq.trained.huggingface.exporter import (
    CODE,
    export_stock,
    export_with_decoder,
    sentence_files,
    why_no_code,
)
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
        with_decoder: also export the decoder and the language model head, with the file of code that computes them.
        text: text file whose lines are also compared.
        pooling: vector of a text for sentence-transformers: the mean of the hidden states, or the first one (default:
            that of an imported model, if it has one).
    """

    model: Model
    data_bin: Directory | None = None
    ema: bool = False
    out: Directory
    with_decoder: bool = False
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
    export = export_with_decoder if options.with_decoder else export_stock
    written = export(pretrained, options.out, lines, options.pooling)
    if options.pooling and (replaced := sentence_files(pretrained)):
        print(f"--pooling {options.pooling}: not exported are the imported model's {', '.join(replaced)}")
    print(f"{options.out}: {written}, compared with the original")
    if not written.endswith("ForMaskedLM") and not why_no_code(pretrained):
        print(f"--with-decoder would add the decoder and head, which fill in masks, and their code, {CODE.name}")
