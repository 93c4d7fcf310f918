"""What a data-bin was made of: the ``manifest.json`` beside it."""

import json
import platform
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path

from mae_lm_fairseq.utils.errors import UserError

MANIFEST = "manifest.json"


@dataclass(frozen=True)
class SplitStatistics:
    """The books of one split.

    Attributes:
        documents: runs of lines with text between blank ones.
        lines: lines in the data-bin: those of the files, blank ones too, and one blank line between two files where
            neither has one.
        tokens_in: pieces that came out of the tokenizer, and one end per line.
        tokens_out: tokens in the finished data-bin.
        unk: how many of the pieces are ``<unk>``.
        unk_rate: their share of the pieces, line ends not counted.
    """

    documents: int
    lines: int
    tokens_in: int
    tokens_out: int
    unk: int
    unk_rate: float


@dataclass(frozen=True)
class Manifest:
    """How a data-bin came about.

    Attributes:
        versions: of Python and of the packages that had a part in it.
        options: of the command, by name.
        tokenizer_sha256: of the sentencepiece model file.
        dictionary_sha256: ``dictionary_fingerprint`` of fairseq's dictionary.
        splits: by name.
    """

    versions: dict[str, str]
    options: dict[str, object]
    tokenizer_sha256: str
    dictionary_sha256: str
    splits: dict[str, SplitStatistics]

    def write(self, path: str | Path):
        """Write the manifest as JSON."""
        Path(path).write_text(json.dumps(asdict(self), indent=2, ensure_ascii=False) + "\n", encoding="utf-8")

    @classmethod
    def read(cls, path: str | Path) -> "Manifest":
        """Read a manifest.

        Raises:
            UserError: the file cannot be read or is not a manifest.
        """
        try:
            fields = json.loads(Path(path).read_text(encoding="utf-8"))
            splits = {name: SplitStatistics(**split) for name, split in fields.pop("splits").items()}
            return cls(splits=splits, **fields)
        except OSError as error:
            raise UserError(f"{path}: {error.strerror}") from None
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise UserError(f"{path}: not a manifest of a data-bin ({error}); prepare the data again") from None


def current_versions() -> dict[str, str]:
    """Versions of what prepares data here."""
    packages = {name: version(name) for name in ("mae_lm_fairseq", "sentencepiece", "numpy")}
    return {"python": platform.python_version(), **packages}
