"""Values of ranks that a study records."""

from mae_lm_fairseq.measures.rank import Rank


def test_threshold_ranks_have_the_plain_names():
    rows = [
        {"layer": 0, "input": "clean", "tokens": "real", "threshold": 3.0, "entropy": 5.5},
        {"layer": 1, "input": "clean", "tokens": "real", "threshold": 2.0, "entropy": 4.5},
        {"layer": 1, "input": "as_trained", "tokens": "mask", "threshold": 1.0, "entropy": 1.5},
    ]
    assert Rank().recorded({"ranks": rows, "layers": 1}) == {
        "real_clean": [3.0, 2.0],
        "entropy_real_clean": [5.5, 4.5],
        "mask_as_trained": [None, 1.0],
        "entropy_mask_as_trained": [None, 1.5],
    }
