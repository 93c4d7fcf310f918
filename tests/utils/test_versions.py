"""Versions and provenance, where packages may be imported without being installed."""

from importlib.metadata import PackageNotFoundError

from mae_lm_fairseq.utils import versions


def test_a_package_without_metadata_is_named(monkeypatch):
    def version(package):
        if package == "mae_lm_fairseq":
            raise PackageNotFoundError(package)
        return "1.0"

    monkeypatch.setattr(versions, "version", version)
    monkeypatch.setenv("PATH", "")  # without git
    found = versions.provenance()
    assert found["versions"]["mae_lm_fairseq"] == "not installed"
    assert found["versions"]["torch"] == "1.0"
    assert found["commit"] is None
