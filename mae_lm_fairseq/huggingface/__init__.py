"""Exchange of models with Hugging Face's ``transformers``, which must be imported after this package."""

import importlib
import sys


def hide_broken_torchaudio() -> None:
    """Make an installed torchaudio look absent if importing it fails.

    fairseq requires torchaudio for its speech code, and pip may install one that was built for another torch.
    transformers imports every torchaudio that it finds, and then none of its models can be loaded.
    """
    try:
        importlib.import_module("torchaudio")
    except Exception:  # it is missing, or an OSError or RuntimeError from its compiled library, among others
        sys.modules["torchaudio"] = None  # importlib finds no spec for such a module


hide_broken_torchaudio()
