"""Names of the machine's other programs and mounts are bytes, and not always UTF-8: commands accept them."""

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

CUT = b"gr\xc3"  # the kernel cuts a process's name after 15 bytes, in the middle of a character, too
LATIN = b"caf\xe9"


def test_a_process_with_such_a_name_is_known_and_knows_whether_it_is_root() -> None:
    def renamed() -> bool:
        Path("/proc/self/comm").write_bytes(CUT)
        return identity().is_alive and is_root()

    assert in_child(renamed)


def test_a_cluster_comes_up_despite_such_a_mount_point(tmp_path: Path) -> None:
    place = tmp_path / os.fsdecode(LATIN)
    place.mkdir()
    syscalls.mount("none", str(place), "tmpfs")
    try:
        with Cluster.star(2).up(keep=True) as cluster:
            assert cluster["n1"].run(["hostname"]).stdout == "n1\n"
    finally:
        syscalls.umount(str(place))
