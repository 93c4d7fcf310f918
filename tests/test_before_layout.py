"""Files written by version 0.1.0, before the package's modules moved: they still load and give the same results."""

import json

import pytest

from tests.fixtures.make_before_layout import BEFORE, VALUES

EXPECTED = json.loads((BEFORE / "expected.json").read_bytes())
# Rounding depends on the processor and the torch version. In training, Adam amplifies such differences.
TOLERANCE = {"resumed": 1e-4}
USUAL_TOLERANCE = 1e-6


@pytest.mark.filterwarnings("ignore::UserWarning")  # from transformers
@pytest.mark.parametrize("name", VALUES)
def test_old_files_give_the_same_results(name, tmp_path):
    assert_close(VALUES[name](BEFORE, tmp_path), EXPECTED[name], TOLERANCE.get(name, USUAL_TOLERANCE))


def assert_close(found, expected, tolerance: float):
    """Compare nested JSON data: floats up to the tolerance, everything else exactly."""
    assert type(found) is type(expected)
    if isinstance(expected, dict):
        assert found.keys() == expected.keys()
        for key, value in expected.items():
            assert_close(found[key], value, tolerance)
    elif isinstance(expected, list):
        assert len(found) == len(expected)
        for one, other in zip(found, expected, strict=True):
            assert_close(one, other, tolerance)
    elif isinstance(expected, float):
        assert found == pytest.approx(expected, rel=tolerance, abs=tolerance)
    else:
        assert found == expected


def test_no_file_names_a_directory_of_the_machine():
    for path in BEFORE.rglob("*"):
        if path.is_file():
            content = path.read_bytes().replace(b"/tmp/plasma", b"")  # the default of fairseq's --plasma-path
            assert not [name for name in (b"/work", b"/tmp", b"/root", b"/home") if name in content], path
