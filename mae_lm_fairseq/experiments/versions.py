"""What results depend on."""

import platform
from importlib.metadata import version

PACKAGES = ("mae_lm_fairseq", "fairseq-fixed", "torch", "numpy", "sentencepiece")


def versions() -> dict[str, str]:
    """Of Python and of the packages that train the models."""
    return {"python": platform.python_version()} | {name: version(name) for name in PACKAGES}
