"""Clusters whose state is on a full disk: a failed `up` leaves nothing, services are restarted, and `down` works."""

from __future__ import annotations

import contextlib
import errno
import os
import signal
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from testbed import Cluster
from testbed.cluster import removal
from testbed.cluster.lifecycle import ApplyResult
from testbed.cluster.records.state import Store
from testbed.cluster.services.supervisor import SOCKET
from testbed.cluster.startup import bring_up
from testbed.errors import KernelError
from testbed.kernel import locks, syscalls
from testbed.runtime import event_log
from testbed.runtime.calls import NotListeningError, call
from testbed.runtime.supervision import service_keys, service_lock, supervisor_lock
from testbed.spec.resolver import resolve
from tests.live.machine_state import eventually

pytestmark = [pytest.mark.requires("root"), pytest.mark.usefixtures("machine")]

NAME = f"full-{os.getpid()}"


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    """Store on a file system of 4 MiB."""
    small = tmp_path / "small"
    small.mkdir()
    syscalls.mount("small", str(small), "tmpfs", 0, "size=4m,mode=755")
    yield Store(small / "clusters")
    (small / "filler").unlink(missing_ok=True)
    assert os.listdir(small) == []
    syscalls.umount(str(small))


def fill(store: Store) -> None:
    with contextlib.suppress(OSError), (store.root.parent / "filler").open("wb", buffering=0) as file:
        while True:
            file.write(bytes(1024))


def up(store: Store, delay: str = "0s") -> ApplyResult:
    return bring_up(store, resolve(Cluster.star(2, delay=delay)), name=NAME, origin="test", lasting=True)


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


def kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)
    with contextlib.suppress(ChildProcessError):
        os.waitpid(pid, 0)  # if it is a child of this process


def test_supervisor_and_relay_are_restarted_on_a_full_disk_and_say_so_later(store: Store) -> None:
    up(store, delay="1ms")
    directory = store.directory(NAME)
    relay_lock = service_lock(directory, "relay", service_keys(directory, "relay")[0])
    try:
        fill(store)
        with contextlib.suppress(OSError):
            while True:  # until the last page of the log is full
                event_log.record(directory, "filler")
        for lock in (relay_lock, supervisor_lock(directory), relay_lock):
            pid = locks.holder(lock)
            kill(pid)
            eventually(partial(has_new_holder, lock, pid), f"{lock.name} has a new holder")
            eventually(lambda: answers(directory), "the supervisor answers")
        assert set(events(directory)) <= {"filler"}
        (store.root.parent / "filler").unlink()
        kill(locks.holder(relay_lock))
        eventually(lambda: "relay restarted" in events(directory), "the restart is recorded")
        assert "events omitted" in events(directory)
    finally:
        removal.down(store, NAME)


def has_new_holder(lock: Path, previous: int) -> bool:
    return locks.holder(lock) not in (0, previous)


def events(directory: Path) -> list[str]:
    return [str(event["event"]) for event in event_log.read(directory)]


def answers(directory: Path) -> bool:
    """Whether the supervisor answers; while it starts or starts a relay, it does not, and only one of both may be killed."""
    try:
        call(directory / SOCKET, {"do": "look"})
    except (NotListeningError, KernelError):
        return False
    return True
