"""Clusters whose state is on a full disk: a failed `up` leaves nothing, and `down` works."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from testbed import Cluster
from testbed.cluster import removal
from testbed.cluster.lifecycle import ApplyResult
from testbed.cluster.records.state import Store
from testbed.cluster.startup import bring_up
from testbed.errors import KernelError
from testbed.kernel import syscalls
from testbed.spec.resolver import resolve

pytestmark = [pytest.mark.requires("root"), pytest.mark.usefixtures("machine")]

NAME = f"full-{os.getpid()}"


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    """Store on a file system of 1 MiB."""
    small = tmp_path / "small"
    small.mkdir()
    syscalls.mount("small", str(small), "tmpfs", 0, "size=1m,mode=755")
    yield Store(small / "clusters")
    (small / "filler").unlink()
    assert os.listdir(small) == []
    syscalls.umount(str(small))


def fill(store: Store) -> None:
    with contextlib.suppress(OSError), (store.root.parent / "filler").open("wb", buffering=0) as file:
        while True:
            file.write(bytes(1024))


def up(store: Store) -> ApplyResult:
    return bring_up(store, resolve(Cluster.star(2)), name=NAME, origin="test", lasting=True)


def test_down_works_on_a_full_disk(store: Store) -> None:
    up(store)
    fill(store)
    with pytest.raises(OSError, match=os.strerror(errno.ENOSPC)):
        store.write(store.choose(NAME))
    removal.down(store, NAME)
    assert store.names() == []


def test_an_up_on_a_full_disk_leaves_nothing(store: Store) -> None:
    fill(store)
    with pytest.raises(KernelError, match=r"could not be brought up: No space left on device: /.*/state.json$"):
        up(store)
    assert store.names() == []
