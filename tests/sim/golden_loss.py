"""The golden loss matrix: the costs of messages by size and loss, for each protocol, as a table that is checked in.

Every number is an integer and follows from the firmware's decisions, the wire model and the frames' fates: a change of a
timer, a window or a frame shows in the table's diff (after smoltcp's golden tables).

    python -m tests.sim.golden_loss emp             print a protocol's table
    python -m tests.sim.golden_loss emp --write     and write it to tests/sim/golden/loss_emp.txt

Another protocol is another `Subject`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final

from protocols.active_messages.endpoint_names import EndpointName
from protocols.am2.host.library import ActiveMessages
from protocols.am2.plug import plug as am2_plug
from protocols.core.firmware import Plug
from protocols.emp import host as emp
from protocols.mpi import emp as mpi
from protocols.mpi.device import Device
from protocols.mpi.openmx import device as openmx_device
from protocols.mpi.ssam import device as ssam_device
from protocols.mpi.via import device as via_device
from protocols.openmx.host import plug as openmx_plug
from protocols.ssam.plug import plug as ssam_plug
from protocols.via.host import plug as via_plug
from testbed.controller.conformance.trials import print_line
from testbed.engine.tasks import Task
from testbed.sim.sim_node import SimNode
from testbed.sim.simulation import Simulation
from testbed.spec.elements import ImpairmentKeys
from testbed.spec.model import Description

REQUEST, REPLY, TAG = 1, 2, 77

FOLDER: Final = Path(__file__).parent / "golden"
TIMEOUT: Final = 600_000_000_000
"""Virtual nanoseconds."""

LOSSES: Final[dict[str, ImpairmentKeys]] = {
    "none": {},
    "0.1%": {"loss": "0.1%"},
    "1%": {"loss": "1%"},
    "5%": {"loss": "5%"},
    "10%": {"loss": "10%"},
    "bursts": {"gemodel": "1% 30%"},
}
MESSAGES: Final = {0: 200, 4: 200, 1456: 200, 1457: 200, 5824: 100, 65_536: 20, 1_048_576: 2}
"""Number of messages by size in bytes: below and above the payload of one frame, four frames, and many."""

CELL_MESSAGES: Final = {0: 200, 4: 200, 30: 200, 31: 200, 1456: 20, 4096: 10, 4097: 10, 65_536: 2}
"""Number of messages by size in bytes where frames are cells: one cell, two, a full burst, and many."""

Start = Callable[[Simulation, int, int], "Task[int]"]


@dataclass(frozen=True, slots=True)
class Subject:
    """Subject of the matrix.

    columns: firmware counters, added up over both nodes, that form each column. start: sends all messages of a size
    from one node to the other; its task returns when the last one is acknowledged or replied to. plug: of its
    NICs. how: when a message is sent, for the table's header. messages: number of messages by size.
    """

    columns: Mapping[str, tuple[str, ...]]
    start: Start
    plug: Plug
    how: str
    messages: Mapping[int, int] = field(default_factory=lambda: MESSAGES)


_HEAD: Final = """\
# {name}: what messages from one node to another cost, {how}; 1 Gbit/s, 5 us.
# loss: of each frame, in both directions; bursts: Gilbert-Elliott, {bursts}. time: of all messages, nanoseconds.
# Made by: python -m tests.sim.golden_loss {name} --write
"""


def send_by_mpi(device: Callable[[Any], Device], simulation: Simulation, size: int, count: int) -> Task[int]:
    """Send with MPI's device."""
    sender, receiver = simulation.nodes.values()
    task = simulation.spawn(sender.name, send_all, device(sender.endpoint), size, count)
    simulation.spawn(receiver.name, receive_all, device(receiver.endpoint), size, count)
    return task


async def send_all(endpoint: object, node: SimNode, device: Device, size: int, count: int) -> int:  # noqa: ARG001
    """Send all messages; return when the last one is acknowledged."""
    data = memoryview(bytes(size))
    for _ in range(count):
        await device.send(1, 0, 0, data)
    return node.now()


async def receive_all(endpoint: object, node: SimNode, device: Device, size: int, count: int) -> None:  # noqa: ARG001
    buffers = [memoryview(bytearray(size)) for _ in range(2)]
    receives = [device.receive(0, 0, 0, buffer) for buffer in buffers]
    for number in range(count):
        await receives[number]
        if number + 2 < count:
            receives.append(device.receive(0, 0, 0, buffers[number % 2]))


def send_by_am2(simulation: Simulation, size: int, count: int) -> Task[int]:
    """Active messages: medium ones up to their maximum size, then bulk."""
    sender, receiver = simulation.nodes.values()
    task = simulation.spawn(sender.name, request_all, size, count)
    simulation.spawn(receiver.name, reply_to_all, size, count)
    return task


async def request_all(am: ActiveMessages, node: SimNode, size: int, count: int) -> int:
    """Send all requests; return when the last one is replied to."""
    replies: list[int] = []
    endpoint = am.allocate_bundle().allocate_endpoint()
    endpoint.set_handler(REPLY, lambda _, number: replies.append(number))
    endpoint.map(0, EndpointName(1, 0), TAG)
    data = bytes(size)
    for number in range(count):
        if size <= am.max_medium:
            await endpoint.request_medium(0, REQUEST, data, number)
        else:
            await endpoint.request_bulk(0, REQUEST, data, 0, number)
        while len(replies) <= number:
            await endpoint.wait()
            await endpoint.poll()
    return node.now()


async def reply_to_all(am: ActiveMessages, node: SimNode, size: int, count: int) -> None:  # noqa: ARG001
    endpoint = am.allocate_bundle().allocate_endpoint()
    endpoint.tag = TAG
    endpoint.segment = bytearray(size)
    endpoint.set_handler(REQUEST, lambda token, _, number: token.reply(REPLY, number))
    handled_count = 0
    while handled_count < count:
        await endpoint.wait()
        handled_count += await endpoint.poll()


SUBJECTS: Final = {
    "emp": Subject(
        {
            "frames": ("frames_sent",),
            "resent": ("frames_resent",),
            "acks": ("acknowledgements_sent", "reacknowledgements_sent"),
            "time-outs": ("collections_resent",),
        },
        partial(send_by_mpi, mpi.device),
        emp.plug(),
        "each sent when the one before has been acknowledged",
    ),
    "am2": Subject(
        {
            "packets": ("packets_sent",),
            "resent": ("packets_resent",),
            "acks": ("acknowledgements_sent",),
            "refused": ("refusals_received",),
        },
        send_by_am2,
        am2_plug(),
        "as requests, each sent when the one before has been replied to",
    ),
    "ssam": Subject(
        {
            "cells": ("cells_written",),
            "resent": ("hurried", "resent"),
            "again": ("answered_again",),
            "time-outs": ("resent",),
        },
        partial(send_by_mpi, ssam_device),
        ssam_plug(),
        "each sent when the one before is in the window",
        CELL_MESSAGES,
    ),
    "via": Subject(
        {
            "frames": ("frames_sent",),
            "resent": ("frames_resent",),
            "acks": ("acknowledgements_sent",),
            "time-outs": ("timeouts",),
        },
        partial(send_by_mpi, via_device),
        via_plug(),
        "each sent when the one before has been copied",
    ),
    "openmx": Subject(
        {
            "frames": ("send_tiny", "send_small", "send_mediumsq_frag", "send_rndv", "send_pull_reply"),
            "resent": ("resent",),
            "acks": ("send_liback",),
            "time-outs": ("pull_timeout_handler_first_block",),
        },
        partial(send_by_mpi, openmx_device),
        openmx_plug(),
        "each sent when the one before has left its buffer",
    ),
}
"""frames, packets: first transmissions of data. acks: includes NACKs. time-outs: number of complete retransmissions."""


def row(name: str, loss: str, size: int, plug: Plug | None = None) -> dict[str, int]:
    """Return a row of the table by column. plug: replaces the protocol's own."""
    subject = SUBJECTS[name]
    cluster = Description.back_to_back(delay="5us", rate="1gbit", seed=1, **LOSSES[loss])
    with Simulation(cluster, plug or subject.plug) as simulation:
        task = subject.start(simulation, size, subject.messages[size])
        simulation.run(timeout=TIMEOUT)
        counter_values = [node.agent.firmware.counter_values() for node in simulation.nodes.values()]
        return {"time": task.result()} | {
            column: sum(values[counter] for values in counter_values for counter in counters)
            for column, counters in subject.columns.items()
        }


def table(name: str) -> str:
    """Return a protocol's table as text, as it is checked in."""
    rows: list[Mapping[str, object]] = [
        {"loss": loss, "bytes": size, "messages": count, **row(name, loss, size)}
        for loss in LOSSES
        for size, count in SUBJECTS[name].messages.items()
    ]
    lines = [list(rows[0]), *[[str(value) for value in row.values()] for row in rows]]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    text = "\n".join("  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True)) for line in lines)
    return f"{_HEAD.format(name=name, how=SUBJECTS[name].how, bursts=LOSSES['bursts']['gemodel'])}{text}\n"


def path(name: str) -> Path:
    """Return the path of a protocol's table."""
    return FOLDER / f"loss_{name}.txt"


def main(arguments: Sequence[str]) -> int:
    name = arguments[0]
    text = table(name)
    if "--write" in arguments:
        FOLDER.mkdir(exist_ok=True)
        path(name).write_text(text, encoding="utf-8")
    else:
        print_line(text)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
