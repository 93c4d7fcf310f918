"""A training that ended after other updates than those that the study asked for."""

import pytest
import torch

from mae_lm_fairseq.study.run_files import read_training
from mae_lm_fairseq.training.runner import Run
from mae_lm_fairseq.utils.errors import UserError


def test_it_has_no_result(tmp_path):
    run = Run("A", (), tmp_path / "training-6.json", print)
    with pytest.raises(UserError, match=r"checkpoint_last\.pt: No such file"):
        read_training(run, 6, tmp_path)
    torch.save({"optimizer_history": [{"num_updates": 5}]}, tmp_path / "checkpoint_last.pt")
    with pytest.raises(UserError, match="5 updates, not 6"):
        read_training(run, 6, tmp_path)
    assert read_training(run, 5, tmp_path)["measures"] == {}
