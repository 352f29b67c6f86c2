"""Processes that continue if the cluster's event log cannot be written, as on a full disk."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from pathlib import Path

import pytest

from testbed.fates.flows import Flow
from testbed.fates.records import LOSS, Fate, Record
from testbed.runtime import event_log
from testbed.runtime.relay.orders import Orders, RelayPaths
from testbed.runtime.relay.process import Process

RECORD = Record("n1--s1", "forward", 0, Flow(0x88B5, 1, 2, ()), 1, LOSS, Fate(drop=True))


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[Path]:
    """A directory whose event log is a FIFO without a reader: every write fails."""
    os.mkfifo(tmp_path / event_log.FILE)
    with pytest.raises(OSError, match="No such device"):
        event_log.record(tmp_path, "inject")
    yield tmp_path
    (tmp_path / event_log.FILE).unlink()


def recorded(directory: Path) -> list[str]:
    return [str(event["event"]) for event in event_log.read(directory)]


def test_omitted_events_are_counted_in_the_next_event_that_can_be_written(directory: Path) -> None:
    for _ in range(2):
        event_log.record_if_possible(directory, "inject")
    log = directory / event_log.FILE
    log.unlink()
    for _ in range(2):
        event_log.record_if_possible(directory, "heal")
    assert recorded(directory) == ["events omitted", "heal", "heal"]
    omitted = next(event_log.read(directory))
    assert (omitted["pid"], omitted["count"]) == (os.getpid(), 2)
    assert omitted["reason"].startswith("No such device")


def test_an_event_of_which_only_the_beginning_fits_does_not_damage_the_next_one(tmp_path: Path) -> None:
    """A limit on the size of files stands in for the disk."""
    event_log.record(tmp_path, "up")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, ((tmp_path / event_log.FILE).stat().st_size + 20, limits[1]))
    try:
        with pytest.raises(OSError, match="File too large"):
            event_log.record(tmp_path, "inject")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    event_log.record(tmp_path, "heal")
    assert recorded(tmp_path) == ["up", "heal"]


def test_a_relay_continues_when_its_log_of_fates_ends(directory: Path) -> None:
    paths = RelayPaths(directory)
    paths.write_orders(Orders(0, log="/dev/full"))
    process = Process(paths, 0, [])
    process._load()
    process._write(RECORD)
