"""Programs that a machine's worker runs in nodes for `exec`, and their end when the controller disconnects."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Sequence

import pytest

from testbed.errors import TestbedError
from testbed.machines import worker
from testbed.machines.request_reader import RequestReader

LEFT_RUNNING = 6  # s


@pytest.fixture(autouse=True)
def _local_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Run programs in this process's namespaces instead of a node's."""

    class Store:
        def choose(self, name: str) -> str:
            return name

    def start(_: object, command: Sequence[str], *, group: bool, **streams: int) -> subprocess.Popen[str]:
        return subprocess.Popen(command, start_new_session=group, text=True, **streams)

    monkeypatch.setattr(worker, "Store", Store)
    monkeypatch.setattr(worker, "node_context", lambda *_: None)
    monkeypatch.setattr(worker, "start", start)


def execute(command: str, *, is_connected: bool) -> object:
    reader, writer = os.pipe()
    try:
        if not is_connected:
            os.close(writer)
        return worker._execute(RequestReader(reader), "lab", "n1", ["sh", "-c", command])
    finally:
        os.close(reader)
        if is_connected:
            os.close(writer)


def test_the_reply_has_the_exit_code_and_the_output() -> None:
    reply = execute("echo out; echo error >&2; exit 3", is_connected=True)
    assert reply == {"code": 3, "stdout": "out\n", "stderr": "error\n"}


@pytest.mark.parametrize("command", [f"sleep {LEFT_RUNNING}", f"setsid sleep {LEFT_RUNNING} &"])
def test_the_worker_does_not_wait_for_output_after_the_controller_has_disconnected(command: str) -> None:
    start_time = time.monotonic()
    with pytest.raises(TestbedError, match="the controller has disconnected"):
        execute(command, is_connected=False)
    assert time.monotonic() - start_time < LEFT_RUNNING - 1
