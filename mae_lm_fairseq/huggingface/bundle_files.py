"""Files that let ``transformers`` read a bundle: the tokenizer in its format, and a model card."""

import shutil
import tempfile
from pathlib import Path

from mae_lm_fairseq.checkpoints.reading import Pretrained
from mae_lm_fairseq.huggingface.model_card import bundle_card
from mae_lm_fairseq.utils.errors import UserError


def add_tokenizer_and_card(pretrained: Pretrained, directory: Path) -> None:
    """Complete a bundle that :func:`~mae_lm_fairseq.checkpoints.bundle.write_bundle` writes.

    Where ``transformers`` is not installed, or cannot represent the tokenizer, the bundle has the tokenizer's own files
    only, which are all that this package reads; the model card says so.
    """
    lack = _add_tokenizer(pretrained, directory)
    (directory / "README.md").write_text(bundle_card(pretrained, lack), encoding="utf-8")


def _add_tokenizer(pretrained: Pretrained, directory: Path) -> str:
    """Write the tokenizer for ``transformers`` after comparing it; return why it is missing, or an empty string."""
    if pretrained.tokenizer is None:
        return "none was kept with the training data"
    try:
        from mae_lm_fairseq.huggingface.comparison import comparable, compare_ids
        from mae_lm_fairseq.huggingface.tokenizer import write_tokenizer
    except ImportError as error:
        return f"{error}, where the bundle was written"
    with tempfile.TemporaryDirectory() as temporary:
        try:
            write_tokenizer(pretrained, Path(temporary))
            compare_ids(Path(temporary), pretrained, comparable([]))
        except UserError as reason:
            return str(reason)
        shutil.copytree(temporary, directory, dirs_exist_ok=True)
    return ""
