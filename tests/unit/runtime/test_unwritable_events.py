"""Processes that continue if the cluster's event log cannot be written, as on a full disk."""

from __future__ import annotations

import os
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


def test_an_event_is_omitted(directory: Path) -> None:
    event_log.record_if_possible(directory, "inject")


def test_a_relay_continues_when_its_log_of_fates_ends(directory: Path) -> None:
    paths = RelayPaths(directory)
    paths.write_orders(Orders(0, log="/dev/full"))
    process = Process(paths, 0, [])
    process._load()
    process._write(RECORD)
