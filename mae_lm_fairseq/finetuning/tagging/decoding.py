"""Labels of words from the logits of windows."""

from collections.abc import Callable, Iterable, Sequence

import numpy as np
import torch

from mae_lm_fairseq.checkpoints.validation import WORD_HEAD
from mae_lm_fairseq.core.packing import batches_of_similar_length
from mae_lm_fairseq.finetuning.tagging.windows import WordWindows


@torch.no_grad()
def word_logits(
    model: torch.nn.Module, windows: WordWindows, progress: Callable[[Sequence], Iterable] = iter
) -> list[np.ndarray]:
    """Return the logits of the words of each sentence, float32 [words, labels].

    Args:
        model: a fine-tuned fairseq model.
        windows: the sentences.
        progress: wraps the sequence of batches, for example to show a progress bar.
    """
    labels = model.classification_heads[WORD_HEAD].classifier.out_features
    device = next(model.parameters()).device
    logits = [np.empty((len(sentence), labels), dtype=np.float32) for sentence in windows.sentences]
    for indices in progress(list(batches_of_similar_length(windows.sizes.tolist()))):
        batch = windows.collater([windows[index] for index in indices])
        tokens = batch["net_input"]["src_tokens"].to(device)
        found, _ = model(tokens, features_only=True, classification_head_name=WORD_HEAD)
        for index, row in zip(indices, found.float().cpu().numpy(), strict=True):
            window = windows.windows[index]
            logits[window.sentence][window.labelled] = row[window.positions]
    return logits
