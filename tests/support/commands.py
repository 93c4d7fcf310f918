"""Verbs of ``mae-lm`` in this process."""

from mae_lm_fairseq import cli
from tests.support import words_of


def run_verb(verb: str, *words: object) -> int | None:
    """Run a verb, such as ``run_verb("export", model, "--out", out)``, and return its exit code."""
    return cli.run(verb, words_of(*words))
