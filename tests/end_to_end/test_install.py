"""scripts/install.sh."""

import subprocess
from pathlib import Path

INSTALL = Path(__file__).resolve().parents[2] / "scripts/install.sh"


def test_a_directory_with_other_files_is_left_alone(tmp_path):
    (tmp_path / "thesis.txt").write_text("years of work")
    done = subprocess.run(["bash", INSTALL, tmp_path, "test"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert f"{tmp_path} exists and is no virtual environment" in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]


def test_an_environment_is_reused_with_the_same_requirements_only(tmp_path):
    """The stand-in for its Python says that everything succeeds."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/python").write_text("#!/bin/sh\n")
    (tmp_path / "bin/python").chmod(0o755)
    (tmp_path / ".installed-of-other-requirements").touch()
    for extras, begin in (("test", "Installing"), ("test", "Reusing"), ("hf", "Installing"), ("test", "Reusing")):
        done = subprocess.run(["bash", INSTALL, tmp_path, extras], capture_output=True, text=True, timeout=60)
        assert done.stdout.startswith(begin), done.stderr
    stamps = [path.name for path in tmp_path.glob(".installed-*")]
    assert len(stamps) == 2
    assert ".installed-of-other-requirements" not in stamps
