"""A training that ended after other updates than those that the study measures."""

import pytest
import torch

from mae_lm_fairseq.study.plan import Model
from mae_lm_fairseq.study.results import ToMeasure, Training, keep_and_measure
from mae_lm_fairseq.training.runner import Run
from mae_lm_fairseq.utils.errors import UserError


def test_its_checkpoint_is_not_kept(tmp_path):
    state = {"cfg": {}, "model": {}, "extra_state": {}, "last_optimizer_state": {}}
    state["optimizer_history"] = [{"num_updates": 5}]
    torch.save(state, tmp_path / "checkpoint_last.pt")
    training = Training(Model("A", "mae_lm_tiny"), None, 1, tmp_path / "training")
    run = Run("A", (), training.result(6), print)
    with pytest.raises(UserError, match="5 updates, not 6"):
        keep_and_measure(run, ToMeasure(training, 6, None, {}), tmp_path)
    assert not training.checkpoint(6).exists()
    keep_and_measure(run, ToMeasure(training, 5, None, {}), tmp_path)
    assert training.checkpoint(5).exists()
