"""Programs in nodes cannot start in a plain chroot, whose root directory is not a mount point; errors name the reason."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from testbed import Cluster
from testbed.kernel import syscalls
from testbed.kernel.children import in_child
from tests.live.testbed_command import assert_error
from tests.live.testbed_command import testbed as command

pytestmark = [pytest.mark.requires("root"), pytest.mark.usefixtures("machine")]

REASON = "the root directory here is not a mount point (a plain chroot)"
REMEDY = "'mount --bind DIR DIR' before 'chroot DIR' makes it one"


def enter_plain_chroot(base: Path) -> None:
    """Change to a root directory that holds the machine's directories and is not its file system's root."""
    syscalls.unshare(syscalls.CLONE_NEWNS)
    syscalls.mount("none", "/", flags=syscalls.MS_REC | syscalls.MS_PRIVATE)
    top_level = [path for path in Path("/").iterdir() if path.is_dir() or path.is_symlink()]
    syscalls.mount("none", str(base), "tmpfs")
    root = base / "root"
    root.mkdir()
    for path in top_level:
        if path.is_symlink():
            (root / path.name).symlink_to(path.readlink())
        else:
            (root / path.name).mkdir()
            syscalls.mount(str(path), str(root / path.name), flags=syscalls.MS_BIND | syscalls.MS_REC)
    os.chroot(root)
    os.chdir("/")


def test_exec_in_a_plain_chroot_reports_the_reason_and_the_remedy(tmp_path: Path) -> None:
    def execute() -> subprocess.CompletedProcess[str]:
        enter_plain_chroot(tmp_path)
        return command("exec", "n1", "true")

    with Cluster.star(2).up():
        assert_error(in_child(execute), 1, REASON, REMEDY)


def test_doctor_reports_a_plain_chroot(tmp_path: Path) -> None:
    def enter_and_print() -> str:
        enter_plain_chroot(tmp_path)
        return command("doctor").stdout

    text = " ".join(in_child(enter_and_print).split())
    assert REASON in text
    assert REMEDY in text
