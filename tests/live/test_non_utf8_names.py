"""Process names and mount points that are not UTF-8."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from testbed import Cluster
from testbed.kernel import syscalls
from testbed.kernel.children import in_child
from testbed.kernel.processes import identity
from testbed.kernel.userns import is_root

pytestmark = [pytest.mark.requires("root"), pytest.mark.usefixtures("machine")]

TRUNCATED_NAME = b"gr\xc3"  # the kernel truncates names to 15 bytes, possibly within a character
LATIN1_NAME = b"caf\xe9"


def test_a_process_whose_name_is_not_utf8_can_be_identified() -> None:
    def identify() -> bool:
        Path("/proc/self/comm").write_bytes(TRUNCATED_NAME)
        return identity().is_alive and is_root()

    assert in_child(identify)


def test_a_cluster_comes_up_next_to_a_mount_point_that_is_not_utf8(tmp_path: Path) -> None:
    mount_point = tmp_path / os.fsdecode(LATIN1_NAME)
    mount_point.mkdir()
    syscalls.mount("none", str(mount_point), "tmpfs")
    try:
        with Cluster.star(2).up(keep=True) as cluster:
            assert cluster["n1"].run(["hostname"]).stdout == "n1\n"
    finally:
        syscalls.umount(str(mount_point))
