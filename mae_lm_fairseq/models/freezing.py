"""Parameters that are not trained: the lower layers in fine-tuning, or the encoder in the first updates."""

from torch import nn

from mae_lm_fairseq.core.transformer import TransformerStack


def freeze_below(encoder: TransformerStack, layers: int) -> None:
    """Freeze all parameters of an encoder but those of its last layers.

    Args:
        encoder: an encoder whose parameters have been marked by :func:`~mae_lm_fairseq.models.finetuning.mark_depths`.
        layers: number of layers that are trained.
    """
    for parameter in encoder.parameters():
        parameter.requires_grad_(parameter.param_group <= layers)


def drop_frozen_gradients(model: nn.Module, updates: int, frozen_updates: int) -> None:
    """Remove the gradients of the encoder, with the token embeddings that the head shares, while it is frozen.

    Neither clipping nor the optimizer sees parameters without a gradient. Of several processes, ``legacy_ddp`` makes
    gradients zero again, so this is called before every step, too.

    Args:
        model: a model of this package.
        updates: number of updates before this one.
        frozen_updates: number of updates in which the encoder is frozen (``--freeze-encoder-updates``).
    """
    if updates < frozen_updates:
        for parameter in model.autoencoder.encoder.parameters():
            parameter.grad = None
