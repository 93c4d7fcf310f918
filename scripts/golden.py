#!/usr/bin/env python3
"""Check that two revisions of the package compute the same, bit by bit.

Both revisions prepare a data-bin, pretrain every preset at size tiny, write bundles and Hugging Face exports, import
and adapt one again, average checkpoints, run all measures, and fine-tune on made-up GLUE, SQuAD, classification and
tagging tasks. Then both resume trainings of the first with its data-bin. Tokens, losses, weights, optimizer states,
features, predictions, numbers and files must be equal; model cards, reports, figures, logs and what INTENDED names may
differ. The exit code is 0 when everything is equal, 1 when items differ (their names are printed), and 2 on an error.
It takes several minutes on two CPU cores. Packages come from the environment of the interpreter that runs this program.
"""

import argparse
import json
import os
import subprocess
import sys
import sysconfig
import tempfile
import venv
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
PROBE = Path(__file__).resolve().with_name("golden_probe.py")
INTENDED = {
    "adapt: *start.json*": "adapt is a study of one model: the start is in plan.json",
    "adapt: *model.json*": "the same",
    "adapt: results.json options * (only in the second)": "--questions, which no earlier revision has",
    "adapt: results.json retrieval (only in the second)": "the same",
    "adapt: results.json sentence_encoder*": "a sentence encoder is recognised, and the report warns",
    "bundle of *: config.json*": "a bundle has the length of its training, at which measures read text",
    "plan * memory *": "the planner asks the operators for their memory",
    "rank: ranks.json models * rises *": "no figure or report showed them",
    "rank: ranks.json models * outside * angles *": "the same",
    "rank: ranks.json models * outside * dimensions*": "the same; the first is the threshold rank of [MASK]",
    "tagging, *: dev_predictions.conllu*": "predictions are a new last column, for which CoNLL-U has no room",
}
"""Patterns of items that differ on purpose from earlier revisions, and why."""


class GoldenError(Exception):
    """A reason why the revisions cannot be compared."""


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "revisions", nargs=2, metavar="REV", help="two commits, by any name that git accepts; they may be equal"
    )
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run the comparison and return the exit code."""
    try:
        commits = [resolve(name) for name in parser().parse_args(argv).revisions]
        with tempfile.TemporaryDirectory(prefix="golden-") as directory, ThreadPoolExecutor(2) as pool:
            folders = [Path(directory, label) for label in "AB"]
            list(pool.map(install, commits, folders))
            computed = list(pool.map(probe, folders, ["all", "all"]))
            before = ["--train-on", folders[0] / "all"]
            resumed = pool.map(lambda folder: probe(folder, "resumed", *before), folders)
            first, second = (items | more for items, more in zip(computed, resumed, strict=True))
    except GoldenError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    differing = differences(first, second)
    print(*differing, sep="\n", end="\n" * bool(differing))
    print(f"{len(differing)} of {len(first.keys() | second.keys())} items differ between {' and '.join(commits)}")
    return 1 if differing else 0


def resolve(revision: str) -> str:
    """Return the commit that a revision names."""
    command = ["git", "-C", str(ROOT), "rev-parse", "--verify", "--quiet", "--end-of-options", f"{revision}^{{commit}}"]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise GoldenError(f"{revision} is not a commit of {ROOT}")
    return done.stdout.strip()


def install(commit: str, folder: Path) -> None:
    """Write the files of a commit into a new folder, with an environment that imports them."""
    folder.mkdir()
    check_out(commit, folder / "checkout")
    make_environment(folder / "environment", folder / "checkout")


def probe(folder: Path, name: str, *options: object) -> dict[str, Any]:
    """Return the items that the probe computes in folder/name. The folder's name is the label of progress lines."""
    work, out = folder / name, folder / f"{name}.json"
    work.mkdir()
    variables = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    command = [folder / "environment/bin/python", PROBE, folder / "checkout", out, "--label", folder.name, *options]
    done = subprocess.run(command, cwd=work, env=variables | {"OMP_NUM_THREADS": "1"})
    if done.returncode:
        raise GoldenError(f"{folder.name}: the probe failed; see the message above")
    return json.loads(out.read_bytes())


def check_out(commit: str, directory: Path) -> None:
    """Write the files of a commit into a new directory."""
    directory.mkdir()
    archive = subprocess.run(["git", "-C", ROOT, "archive", commit], check=True, capture_output=True).stdout
    subprocess.run(["tar", "-x", "-C", directory], check=True, input=archive)


def make_environment(directory: Path, checkout: Path) -> Path:
    """Make a virtual environment that imports the checkout and this environment's packages; return its Python.

    It names this environment's site-packages in a .pth file. Python does not process .pth files in directories that
    are added in this way, so an editable install of the package has no effect.
    """
    venv.create(directory, symlinks=True)
    base = {"base": str(directory), "platbase": str(directory)}
    site_packages = Path(sysconfig.get_path("purelib", "posix_prefix", vars=base))
    packages = [entry for entry in sys.path if Path(entry).name in ("site-packages", "dist-packages")]
    (site_packages / "golden.pth").write_text("\n".join([str(checkout), *packages]) + "\n", encoding="utf-8")
    return directory / "bin" / "python"


def differences(first: dict[str, Any], second: dict[str, Any]) -> list[str]:
    """Return the names of the items that differ, in their order, or that only one side has."""
    lines = [name for name in first if name in second and first[name] != second[name]]
    lines += [f"{name} (only in the first)" for name in first if name not in second]
    lines += [f"{name} (only in the second)" for name in second if name not in first]
    return [line for line in lines if not any(fnmatchcase(line, pattern) for pattern in INTENDED)]


if __name__ == "__main__":
    sys.exit(main())
