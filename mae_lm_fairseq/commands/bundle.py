"""Make a bundle of a checkpoint: one directory with weights, configuration, dictionary and tokenizer.

Every command and mae_lm_fairseq.load(DIR) load it anywhere; so does AutoModelForMaskedLM of transformers, once
mae_lm_fairseq.trained.huggingface.modeling is imported. The data-bin is that of pretraining, or one with the same
dict.txt and tokenizer.

Example:
    mae-lm bundle checkpoints/mae_lm/checkpoint_last.pt --data-bin data-bin --out bundles/mae_lm
"""

from dataclasses import dataclass

from mae_lm_fairseq.text.tokenizer_files import missing_tokenizer
from mae_lm_fairseq.trained.bundle import write_bundle
from mae_lm_fairseq.trained.huggingface.model_card import add_tokenizer_and_card
from mae_lm_fairseq.trained.reading import read_checkpoint
from mae_lm_fairseq.utils.command_line import Directory, Model, Options as Base


@dataclass(frozen=True, kw_only=True)
class Options(Base):
    """A checkpoint and its bundle.

    Attributes:
        model: checkpoint of fairseq-train.
        data_bin: data-bin with dictionary and tokenizer.
        ema: use the checkpoint's EMA weights (``--store-ema``).
        out: directory of the bundle, which must not exist.
    """

    model: Model
    data_bin: Directory
    ema: bool = False
    out: Directory


def main(options: Options) -> None:
    """Run the command."""
    pretrained = read_checkpoint(options.model, options.data_bin, options.ema)
    if pretrained.tokenizer is None:
        raise missing_tokenizer(options.data_bin)
    write_bundle(pretrained, options.out, add_tokenizer_and_card)
    print(f"{options.out}: {pretrained.about.architecture} after {pretrained.about.updates} updates")
