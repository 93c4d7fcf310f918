"""Commands of pretraining runs."""

import pytest

from mae_lm_fairseq.training.training_command import check_data
from mae_lm_fairseq.utils.errors import UserError


def test_incomplete_data_are_refused_before_training(data_bin, tmp_path):
    with pytest.raises(UserError, match=r"is no data-bin: it has no dict\.txt; mae-lm prepare makes one"):
        check_data(tmp_path)
    for name in ("dict.txt", "train.bin", "train.idx"):
        (tmp_path / name).symlink_to(data_bin / name)
    with pytest.raises(UserError, match="valid"):
        check_data(tmp_path)
    check_data(data_bin)
