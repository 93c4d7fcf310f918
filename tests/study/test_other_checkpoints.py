"""Seeds that were measured after other numbers of updates: those that all have are compared."""

from mae_lm_fairseq.study.endpoints import ENDPOINTS, ValueBySeed

VALUES = ValueBySeed([{10: {"x": 9}, 20: {"x": 5}, 30: {"x": 4}}, {20: {"x": 6}, 30: {"x": 3}}, {20: {"x": 7}}], "x")


def test_checkpoints_are_those_of_all_seeds():
    assert VALUES.checkpoints == [20]
    assert ENDPOINTS["last"](VALUES).tolist() == [5, 6, 7]
    assert ENDPOINTS["end_less_best_checkpoint"](VALUES).tolist() == [0, 0, 0]
