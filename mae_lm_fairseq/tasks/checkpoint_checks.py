"""Checks that a checkpoint fits the data and the masking of a training."""

from collections.abc import Mapping
from typing import Any

from fairseq.data import Dictionary

from mae_lm_fairseq.checkpoints.checkpoint_file import value_at
from mae_lm_fairseq.tasks.masking_rates import RateRange, RateSchedule, schedule_updates
from mae_lm_fairseq.text.data_bin import dictionary_fingerprint
from mae_lm_fairseq.utils.errors import UserError


def check_dictionary_of(subject: str, task_state: Mapping[str, Any], dictionary: Dictionary, data: str) -> None:
    """Check that a model was trained with the dictionary of the data, if its task state says so.

    Raises:
        UserError: if it was another one.
    """
    theirs = task_state.get("dictionary")
    if theirs is not None and theirs != dictionary_fingerprint(dictionary.symbols):
        raise UserError(
            f"{subject} was trained with another dictionary than the dict.txt of {data}; prepare the data with that "
            "model's tokenizer (mae-lm prepare --tokenizer)"
        )


def check_schedule_of(filename: str, state: Mapping[str, Any], rate: RateSchedule | RateRange | None) -> None:
    """Check that a masking rate goes on as in the checkpoint that training resumes from.

    Raises:
        UserError: if its schedule has another length, so that the rate would jump.
    """
    theirs = value_at(state, "cfg", "task")
    if not isinstance(rate, RateSchedule) or value_at(theirs, "mask_prob_end") is None:
        return
    updates = schedule_updates(theirs)
    if updates != rate.updates:
        raise UserError(
            f"--mask-prob-updates {rate.updates}, by default the length of the learning rate's schedule: the masking "
            f"rate would jump, as that of {filename} moves in {updates} updates; add --mask-prob-updates {updates}"
        )
