"""A plain chroot, whose root directory is no mount point, cannot start programs in nodes; errors give this reason."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from testbed import Cluster
from testbed.kernel import syscalls
from testbed.kernel.children import in_child
from tests.live.testbed_command import refused
from tests.live.testbed_command import testbed as command

pytestmark = [pytest.mark.requires("root"), pytest.mark.usefixtures("machine")]

WHY = "the root directory here is no mount point (a plain chroot)"
REMEDY = "'mount --bind DIR DIR' before 'chroot DIR' makes it one"


def enter_plain_chroot(base: Path) -> None:
    """Change to a root directory that holds the machine's directories and is not its file system's root."""
    syscalls.unshare(syscalls.CLONE_NEWNS)
    syscalls.mount("none", "/", flags=syscalls.MS_REC | syscalls.MS_PRIVATE)
    present = [path for path in Path("/").iterdir() if path.is_dir() or path.is_symlink()]
    syscalls.mount("none", str(base), "tmpfs")
    root = base / "root"
    root.mkdir()
    for path in present:
        if path.is_symlink():
            (root / path.name).symlink_to(path.readlink())
        else:
            (root / path.name).mkdir()
            syscalls.mount(str(path), str(root / path.name), flags=syscalls.MS_BIND | syscalls.MS_REC)
    os.chroot(root)
    os.chdir("/")


def test_a_program_in_a_node_is_refused_with_the_reason_and_the_remedy(tmp_path: Path) -> None:
    def executed() -> subprocess.CompletedProcess[str]:
        enter_plain_chroot(tmp_path)
        return command("exec", "n1", "true")

    with Cluster.star(2).up():
        refused(in_child(executed), 1, WHY, REMEDY)


def test_doctor_shows_it_before_anything_is_tried(tmp_path: Path) -> None:
    def enter_and_print() -> str:
        enter_plain_chroot(tmp_path)
        return command("doctor").stdout

    text = " ".join(in_child(enter_and_print).split())
    assert WHY in text
    assert REMEDY in text
