"""Adapt a pretrained model to your text: pretrain it further with its own tokenizer, and measure the difference.

MODEL is a directory of Hugging Face's transformers, a bundle, or a checkpoint with its --data-bin. Writes
OUT/report.md, OUT/results.json, OUT/stock (for AutoModel and AutoTokenizer) and OUT/model (a bundle, with decoder and
head). Started again with the same options, it resumes. Arguments after -- are passed to fairseq-train and override its
options.

Example:
    mae-lm adapt ./roberta-base --train notes/*.txt --valid held-out.txt --out adapted
"""

from dataclasses import replace

from mae_lm_fairseq.study.options import AdaptOptions as Options
from mae_lm_fairseq.utils.errors import UserError


def main(options: Options) -> None:
    """Run the command."""
    from transformers.utils.logging import disable_progress_bar, set_verbosity_error

    from mae_lm_fairseq.adapt import adapt
    from mae_lm_fairseq.utils.locks import directory_lock
    from mae_lm_fairseq.utils.signals import signals_as_errors

    disable_progress_bar()
    set_verbosity_error()  # about weights that other classes have
    paths = {name: getattr(options, name) for name in ("model", "out", "data_bin")}
    options = replace(options, **{name: path and path.resolve() for name, path in paths.items()})
    try:
        with signals_as_errors(), directory_lock(options.out):
            adapt(options)
    except OSError as error:
        raise UserError(f"{error.filename or options.out}: {error.strerror or error}") from None
    print(f"Report: {options.out / 'report.md'}   Model for transformers: {options.out / 'stock'}")
