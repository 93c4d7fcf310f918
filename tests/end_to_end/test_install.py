"""scripts/install.sh."""

import subprocess
from pathlib import Path

INSTALL = Path(__file__).resolve().parents[2] / "scripts" / "install.sh"


def test_a_directory_with_other_files_is_left_alone(tmp_path):
    (tmp_path / "thesis.txt").write_text("years of work")
    done = subprocess.run(["bash", INSTALL, tmp_path, "test"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert f"{tmp_path} exists and is no virtual environment" in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]
