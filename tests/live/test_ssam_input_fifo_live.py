"""The SBA-100's input FIFO on live and dilated clusters.

Section 3.2. In `live` only the depth is modelled: a program that computes, then polls, receives at most 292 cells. Each
sender's window is 32 cells, so ten senders overrun the FIFO of a receiver that does not read, and nine do not. In `dilated`
a cell leaves the FIFO when the modelled core has read it, which takes longer than the next one takes on the fibre.
"""

from __future__ import annotations

import time
from collections import Counter
from pathlib import Path

import pytest

import testbed
from protocols.ssam.host import Library, Reply
from protocols.ssam.settings import MAX_WINDOW, Settings
from testbed import Cluster
from testbed.controller.runs.run_options import Mode
from testbed.workloads.form import Native, Node

pytestmark = [pytest.mark.requires("root"), pytest.mark.usefixtures("machine"), pytest.mark.timeout(120)]

FIRST, COUNT, REPLY = 1, 2, 3
MAX_TRANSIT = 0.5
"""Seconds that the receiver stays busy after the last cell was sent, longer than a cell's transit."""
TIMEOUT = 4_000_000_000
"""Retransmission time-out in ns, longer than the receiver is busy."""


class BusyReceiver(Native[Library]):
    """Each sender opens a connection with a first request, and sends a window of requests while node 0 is busy.

    folder: of the files that synchronize the programs, because messages would be cells, too: `0` exists when node 0 is
    busy, a sender's number when it has sent its window.
    """

    folder: str = ""

    async def program(self, library: Library, node: Node) -> None:  # noqa: ARG002
        if library.node:
            await self._send(library)
        else:
            await self._receive(library, library.size - 1)

    async def _send(self, library: Library) -> None:
        replies: list[bytes] = []
        library.set_handler(REPLY, lambda _, data: replies.append(data))
        await library.request(0, FIRST)
        while not replies or not (Path(self.folder) / "0").exists():
            await library.poll()
        for number in range(MAX_WINDOW):
            await library.request(0, COUNT, bytes((number,)))
        (Path(self.folder) / str(library.node)).touch()
        while len(replies) <= MAX_WINDOW:
            await library.poll()

    async def _receive(self, library: Library, senders: int) -> None:
        handled: Counter[tuple[int, int]] = Counter()
        connected: list[int] = []

        def on_first(source: int, data: bytes) -> Reply:
            connected.append(source)
            return Reply(REPLY, data)

        def on_count(source: int, data: bytes) -> Reply:
            handled[source, data[0]] += 1
            return Reply(REPLY, data)

        library.set_handler(FIRST, on_first)
        library.set_handler(COUNT, on_count)
        while len(connected) < senders:
            await library.poll()
        (Path(self.folder) / "0").touch()
        while len(list(Path(self.folder).iterdir())) <= senders:
            time.sleep(0.01)
        time.sleep(MAX_TRANSIT)
        while len(handled) < senders * MAX_WINDOW:
            await library.poll()
        assert set(handled.values()) == {1}


@pytest.mark.parametrize("senders", [9, 11])
def test_cells_beyond_the_fifos_depth_are_lost_and_retransmitted(senders: int, tmp_path: Path) -> None:
    folder = tmp_path / "sent"
    folder.mkdir()
    cluster = Cluster.star(senders + 1, kind="atm", queue_frames=1_000)
    result = testbed.run(
        cluster, BusyReceiver(folder=str(folder)), protocol="ssam", mode="live", firmware={"timeout": TIMEOUT},
        output=tmp_path / "run",
    )  # fmt: skip
    counters = result.counters["n1"]
    assert counters["overruns"] == max(0, senders * MAX_WINDOW - Settings().input_fifo)
    assert counters["handled"] == senders * (1 + MAX_WINDOW)


EACH = 100
"""Requests of each sender of a stream."""


class Stream(Native[Library]):
    """Requests of all others to node 0, without a pause."""

    async def program(self, library: Library, node: Node) -> None:  # noqa: ARG002
        if library.node:
            for number in range(EACH):
                await library.request(0, COUNT, bytes((number,)))
            while library.pending_work():
                await library.poll()
            return
        handled: list[tuple[int, bytes]] = []
        library.set_handler(COUNT, lambda source, data: handled.append((source, data)))
        while len(handled) < EACH * (library.size - 1):
            await library.poll()
        assert len(set(handled)) == len(handled)


@pytest.mark.parametrize("mode", ["sim", "dilated"])
@pytest.mark.parametrize(("depth", "overruns"), [(40, True), (292, False)])
def test_a_core_that_reads_more_slowly_than_cells_arrive_overruns_the_fifo(
    mode: Mode, depth: int, overruns: bool, tmp_path: Path
) -> None:
    """Three windows are 96 cells."""
    cluster = Cluster.star(4, kind="atm", rate="140mbit", overhead=2, queue_frames=1_000)
    result = testbed.run(
        cluster, Stream(), protocol="ssam", mode=mode, dilate=200 if mode == "dilated" else None,
        profile="sparcstation-20", firmware={"input_fifo": depth}, output=tmp_path / "run",
    )  # fmt: skip
    assert result.counters["n1"]["handled"] == 3 * EACH
    assert {name for name, counted in result.counters.items() if counted["overruns"]} == ({"n1"} if overruns else set())
