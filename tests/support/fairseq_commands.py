"""fairseq options, and checks of how its commands end, for the tests of the patches."""

import shlex
import subprocess
from pathlib import Path

import pytest
import torch
from fairseq import options
from fairseq.dataclass.utils import convert_namespace_to_omegaconf

from mae_lm_fairseq.utils.errors import UserError
from tests.support import words_of

SETTINGS = shlex.split(
    "--task masked_lm --criterion masked_lm --arch roberta_base --encoder-layers 1 --encoder-embed-dim 16 "
    "--encoder-ffn-embed-dim 16 --encoder-attention-heads 2 --tokens-per-sample 32 --batch-size 8 --optimizer adam "
    "--lr 1e-3 --lr-scheduler fixed --num-workers 0 --user-dir mae_lm_fairseq"
)
STATE = {
    "model": {"weight": torch.arange(50_000.0)},
    "cfg": None,
    "args": None,
    "optimizer_history": [{"optimizer_name": "Adam", "lr_scheduler_state": {}, "num_updates": 2}],
    "extra_state": {"train_iterator": {}},
}
"""Contents of a checkpoint."""


def settings(*arguments: str, data: Path | str = "data-bin"):
    """Return the arguments that fairseq-train parses from its command line."""
    return options.parse_args_and_arch(options.get_training_parser(), words_of(data, *SETTINGS, *arguments))


def config(*arguments: str):
    """Return the configuration for a command line."""
    return convert_namespace_to_omegaconf(settings(*arguments))


def refusal(function, *arguments) -> str:
    """Return the message of the UserError that a function raises, or with which it exits the program."""
    with pytest.raises((UserError, SystemExit)) as caught:
        function(*arguments)
    message = str(caught.value).removeprefix("error: ")
    assert len(message.splitlines()) == 1
    return message


def complaint(done: subprocess.CompletedProcess) -> str:
    """Return the error message with which a command ended."""
    assert done.returncode == 1, done.stdout + done.stderr
    assert "Traceback" not in done.stdout + done.stderr
    return done.stderr.splitlines()[-1]
