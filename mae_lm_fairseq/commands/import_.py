"""Import an encoder, to pretrain it further, to fine-tune it, or to analyse it.

Reads a directory of Hugging Face's transformers with a model of the type bert, roberta, xlm-roberta, camembert, mpnet
or distilbert, or a checkpoint of fairseq's RoBERTa with its dict.txt. --out becomes a bundle, which every command takes
as a model, and which can be named as the tokenizer or data-bin. A decoder starts from random weights. mae-lm export
writes the class of transformers that the model came from. No code is run from the files that are read.

Example:
    mae-lm import ./roberta-base --out imported
"""

from mae_lm_fairseq.checkpoints.options import ImportOptions as Options
from mae_lm_fairseq.utils.errors import UserError, needs_transformers
from mae_lm_fairseq.utils.output import configure_logging


def main(options: Options) -> None:
    """Import the model and print what it can be used for."""
    configure_logging()
    if not options.model.exists():
        raise UserError(f"{options.model} does not exist; a model of the Hugging Face hub must be downloaded first")
    with needs_transformers():
        from mae_lm_fairseq.huggingface.importer import import_foreign, notes, usage
    from mae_lm_fairseq.checkpoints.bundle import write_bundle
    from mae_lm_fairseq.huggingface.bundle_files import add_tokenizer_and_card

    pretrained = import_foreign(options.model, options.preset, options.data_bin, options.seed)
    write_bundle(pretrained, options.out, add_tokenizer_and_card)
    for note in notes(options.model):
        print(note)
    print(f"{options.out} is written. {usage(pretrained, options.out)}")
