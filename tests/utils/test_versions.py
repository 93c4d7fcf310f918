"""Versions beside results."""

from importlib.metadata import version

from mae_lm_fairseq.utils import versions


def test_versions_of_the_packages_that_are_installed(monkeypatch):
    monkeypatch.setattr(versions, "PACKAGES", ("torch", "no-such-package"))
    found = versions.versions()
    assert found.keys() == {"python", "torch"}
    assert found["torch"] == version("torch")
