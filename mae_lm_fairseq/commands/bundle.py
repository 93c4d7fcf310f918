"""Make a bundle of a checkpoint: one directory with weights, configuration, dictionary and tokenizer.

Every command and MAELMModel.from_pretrained(DIR) load it anywhere; so does AutoModelForMaskedLM of transformers, once
mae_lm_fairseq.huggingface.modeling is imported. The data-bin is that of pretraining, or one with the same dict.txt and
tokenizer.

Example:
    mae-lm bundle checkpoints/mae_lm/checkpoint_last.pt --data-bin data-bin --out bundles/mae_lm
"""

from mae_lm_fairseq.checkpoints.options import BundleOptions as Options
from mae_lm_fairseq.utils.errors import UserError
from mae_lm_fairseq.utils.output import configure_logging


def main(options: Options) -> None:
    """Run the command."""
    configure_logging()
    from mae_lm_fairseq.checkpoints.bundle import write_bundle
    from mae_lm_fairseq.checkpoints.reading import read_checkpoint
    from mae_lm_fairseq.huggingface.bundle_files import add_tokenizer_and_card
    from mae_lm_fairseq.text.tokenizer_files import NAMES

    pretrained = read_checkpoint(options.model, options.data_bin, options.ema)
    if pretrained.tokenizer is None:
        raise UserError(f"{options.data_bin} has no tokenizer ({NAMES}); put the data's tokenizer there")
    write_bundle(pretrained, options.out, add_tokenizer_and_card)
    print(f"{options.out}: {pretrained.about['architecture']} after {pretrained.about['updates']} updates")
