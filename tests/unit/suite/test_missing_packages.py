"""ci/demo on a machine without Python, for a user who cannot install it."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

REPOSITORY = Path(__file__).parents[3]


def test_an_ordinary_user_is_told_all_missing_packages_at_once(tmp_path: Path) -> None:
    bash, dirname = shutil.which("bash"), shutil.which("dirname")
    assert bash is not None
    assert dirname is not None
    (tmp_path / "dirname").symlink_to(dirname)
    (tmp_path / "id").write_text(f"#!{bash}\necho 1000\n")
    (tmp_path / "id").chmod(0o755)
    ended = subprocess.run(
        [bash, str(REPOSITORY / "ci/demo")], env={"PATH": str(tmp_path)}, capture_output=True, text=True, check=False
    )
    assert ended.returncode == 1
    assert ended.stderr.splitlines() == [
        "missing: ping (Debian package iputils-ping)",
        "missing: python3 (Debian package python3)",
        "missing: ensurepip (Debian package python3-venv)",
        "run as root, then again: apt install iputils-ping python3 python3-venv",
    ]
