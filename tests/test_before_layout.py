"""Files written by version 0.1.0, before the package's modules moved: they still load and give the same results."""

import json

import pytest

from mae_lm_fairseq.checkpoints.reading import read
from mae_lm_fairseq.huggingface.bundle import write_bundle
from tests.fixtures.make_before_layout import BEFORE, VALUES, hf_autoencoder, pretrained

EXPECTED = json.loads((BEFORE / "expected.json").read_bytes())
# Rounding depends on the processor and the torch version: with and without AVX-512, states differ by up to 1.01e-6. In
# training, Adam amplifies such differences.
TOLERANCE = {"resumed": 1e-4}
USUAL_TOLERANCE = 1e-5


@pytest.mark.filterwarnings("ignore::UserWarning")  # from transformers
@pytest.mark.parametrize("name", VALUES)
def test_old_files_give_the_same_results(name, tmp_path):
    assert_close(VALUES[name](BEFORE, tmp_path), EXPECTED[name], TOLERANCE.get(name, USUAL_TOLERANCE))


def test_an_old_export_of_the_autoencoder_is_a_bundle():
    """Bundles and exports of the autoencoder are one format since."""
    assert_close(pretrained(BEFORE / "hf_autoencoder"), EXPECTED["bundle"], USUAL_TOLERANCE)


def test_an_old_bundle_is_written_in_the_new_format(tmp_path):
    write_bundle(read(BEFORE / "bundle"), tmp_path / "bundle")
    assert_close(pretrained(tmp_path / "bundle"), EXPECTED["bundle"], USUAL_TOLERANCE)
    assert json.loads((tmp_path / "bundle" / "config.json").read_bytes())["format"] == 2
    (tmp_path / "before").mkdir()
    (tmp_path / "before" / "hf_autoencoder").symlink_to(tmp_path / "bundle")
    assert_close(hf_autoencoder(tmp_path / "before"), EXPECTED["hf_autoencoder"], USUAL_TOLERANCE)


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
