"""Parts of the weights of a model."""

import torch


def encoder_of(weights: dict) -> dict:
    """Return the weights of the encoder."""
    return {name: weight for name, weight in weights.items() if name.startswith("autoencoder.encoder.")}


def with_head(weights: dict, name: str, head: torch.nn.Module) -> dict:
    """Return the weights of the encoder, with those of a fine-tuned head."""
    head_weights = {f"classification_heads.{name}.{part}": weight for part, weight in head.state_dict().items()}
    return encoder_of(weights) | head_weights
