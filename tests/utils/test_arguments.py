import argparse
import os

import pytest

from mae_lm_fairseq.utils.arguments import not_negative, output_file, positive


def refused(kind, text) -> str:
    with pytest.raises(argparse.ArgumentTypeError) as error:
        kind(str(text))
    return str(error.value)


def test_integers():
    assert positive("3") == 3
    assert refused(positive, "0") == "0 is not above zero"
    assert not_negative("0") == 0
    assert refused(not_negative, "-1") == "-1 is below zero"


def test_output_file(tmp_path, monkeypatch):
    assert output_file(str(tmp_path / "new.json")) == tmp_path / "new.json"
    assert "is a directory" in refused(output_file, tmp_path)
    assert "not a writable directory" in refused(output_file, tmp_path / "nowhere" / "new.json")
    monkeypatch.setattr(os, "access", lambda *_: False)  # root may write everywhere
    assert "not a writable directory" in refused(output_file, tmp_path / "new.json")
