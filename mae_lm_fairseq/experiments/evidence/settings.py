"""Extent, files and output directory of the evidence study."""

import hashlib
from dataclasses import dataclass
from pathlib import Path

from mae_lm_fairseq.downstream.minimal_pairs.files import read_paradigms
from mae_lm_fairseq.text.conllu import read_conllu
from mae_lm_fairseq.utils.errors import UserError
from mae_lm_fairseq.utils.files import file_sha256

THRESHOLDS = (0.8, 0.9, 0.95)
PRIMARY_THRESHOLD = 0.9
PRIMARY_RANK = f"rank-{PRIMARY_THRESHOLD}"
"""Name of the measurement of the primary endpoint."""
SUITES = {"blimp": "BLiMP", "zorro": "Zorro"}
"""Titles of the minimal pairs by the name of their measurement."""
PROBED = "UPOS"
"""Column that the probes predict."""


@dataclass(frozen=True)
class Extent:
    """Length of the runs, and number of seeds and measurements.

    Args:
        short: updates of the pilot and of the causal runs, with a linear decay of the learning rate.
        long: updates of the main runs: a constant learning rate, and a decay in the last quarter. A multiple of 16.
        warmup: warm-up updates.
        causal_seeds, main_seeds: number of pretraining seeds.
        probe_sentences: number of sentences to train a probe on.
        rank_tokens, loss_tokens, pseudo_tokens: amounts of text.
        pairs: minimal pairs per paradigm.
    """

    short: int
    long: int
    warmup: int
    causal_seeds: int
    main_seeds: int
    probe_sentences: int
    rank_tokens: int
    loss_tokens: int
    pseudo_tokens: int
    pairs: int

    def updates(self, stage: str) -> int:
        """Return the number of updates of a stage's trainings."""
        return self.long if stage == "main" else self.short

    @property
    def checkpoints(self) -> list[int]:
        """Numbers of updates at which the main runs are measured: 1/16 to all of them."""
        return [self.long // part for part in (16, 8, 4, 2, 1)]

    @property
    def branch(self) -> tuple[int, int]:
        """Numbers of updates at which the decay branch begins and ends."""
        return 3 * self.long // 8, self.long // 2


EXTENTS = {
    "full": Extent(3040, 7600, 500, 4, 5, 2_500, 20_000, 500_000, 1_000, 50),
    "smoke": Extent(16, 32, 4, 2, 2, 60, 1_500, 1_500, 100, 3),
}


@dataclass(frozen=True)
class Files:
    """Files of the study.

    Args:
        data_bin: data-bin with the training text.
        text: held-out text.
        probe_train, probe_dev, probe_test: CoNLL-U files with a column UPOS.
        blimp, zorro: directories of minimal pairs.
    """

    data_bin: Path
    text: Path
    probe_train: Path
    probe_dev: Path
    probe_test: Path
    blimp: Path
    zorro: Path

    def check(self) -> None:
        """Read what the measurements read, hours before they do.

        Raises:
            UserError: if a file is missing or invalid.
        """
        for path in vars(self).values():
            if not path.exists():
                raise UserError(f"{path} does not exist")
        for path in (self.probe_train, self.probe_dev, self.probe_test):
            read_conllu(path, PROBED)
        for name in SUITES:
            read_paradigms(getattr(self, name))

    def fingerprints(self) -> dict[str, str]:
        """Return hashes that identify the content of all files."""
        return {name: _sha256_of_all(path) for name, path in vars(self).items()}


def _sha256_of_all(path: Path) -> str:
    """Return the hash of a file, or of the names and hashes of the files in a directory."""
    if not path.is_dir():
        return file_sha256(path)
    files = sorted(file for file in path.iterdir() if file.is_file() and file.suffix != ".log")
    return hashlib.sha256("".join(f"{file.name} {file_sha256(file)}\n" for file in files).encode()).hexdigest()


@dataclass(frozen=True)
class Setup:
    """A study: its data, its output directory, and how it is run.

    Args:
        out: output directory.
        files: data.
        size: name of the extent.
        jobs: number of parallel processes, with one thread each.
    """

    out: Path
    files: Files
    size: str
    jobs: int

    @property
    def extent(self) -> Extent:
        return EXTENTS[self.size]
