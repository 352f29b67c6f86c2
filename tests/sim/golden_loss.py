"""The golden loss matrix: what messages of some sizes cost a protocol under some losses, as a table that is checked in.

Every figure is an integer and follows from the firmware's decisions, the wire model and its fates: whoever changes a timer,
a window or a frame changes the table, and sees in its diff what that does (after smoltcp's golden tables).

    python tests/sim/golden_loss.py emp             print a protocol's table
    python tests/sim/golden_loss.py emp --write     and keep it: tests/sim/golden/loss_emp.txt

Another protocol is another entry of `COUNTED`; all else comes from the registry.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from trials import say

from protocols.core.firmware import Plug
from protocols.core.protocol import Protocol
from protocols.mpi.device import Device
from testbed.registry import PROTOCOLS, load
from testbed.sim.node import SimNode
from testbed.sim.simulation import Simulation
from testbed.spec.elements import ImpairmentKeys
from testbed.spec.model import Description

FOLDER: Final = Path(__file__).parent / "golden"
PATIENCE: Final = 600_000_000_000
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
"""How many messages of each size, in bytes: on both sides of a frame's end, four frames, and many."""

COUNTED: Final[dict[str, dict[str, tuple[str, ...]]]] = {
    "emp": {
        "frames": ("frames_sent",),
        "resent": ("frames_resent",),
        "acks": ("acknowledgements_sent", "reacknowledgements_sent"),
        "time-outs": ("collections_resent",),
    }
}
"""By protocol: the table's columns, and which of the firmware's counters, of both nodes, are added up in each. frames: data,
for the first time. time-outs: how often something was sent again as a whole."""

_HEAD: Final = """\
# {name}: what messages from one node to another cost, each sent when the one before has been acknowledged; 1 Gbit/s, 5 us.
# loss: of each frame, in both directions; bursts: Gilbert-Elliott, {bursts}. time: of all messages, nanoseconds.
# Made by: python tests/sim/golden_loss.py {name} --write
"""


async def send_all(endpoint: object, node: SimNode, device: Device, size: int) -> int:  # noqa: ARG001
    """When the last one is acknowledged."""
    data = memoryview(bytes(size))
    for _ in range(MESSAGES[size]):
        await device.send(1, 0, 0, data)
    return node.now()


async def receive_all(endpoint: object, node: SimNode, device: Device, size: int) -> None:  # noqa: ARG001
    buffers = [memoryview(bytearray(size)) for _ in range(2)]
    posted = [device.receive(0, 0, 0, buffer) for buffer in buffers]
    for number in range(MESSAGES[size]):
        await posted[number]
        if number + 2 < MESSAGES[size]:
            posted.append(device.receive(0, 0, 0, buffers[number % 2]))


def protocol_of(name: str) -> Protocol:
    found = load(PROTOCOLS, name)
    assert isinstance(found, Protocol)
    return found


def row(name: str, loss: str, size: int, plug: Plug | None = None) -> dict[str, int]:
    """By column: the time, and what was counted. plug: another one than the protocol's."""
    protocol = protocol_of(name)
    cluster = Description.back_to_back(delay="5us", rate="1gbit", seed=1, **LOSSES[loss])
    with Simulation(cluster, plug or protocol.plug) as simulation:
        sender, receiver = simulation.nodes.values()
        task = simulation.spawn(sender.name, send_all, protocol.device(sender.endpoint), size)
        simulation.spawn(receiver.name, receive_all, protocol.device(receiver.endpoint), size)
        simulation.run(timeout=PATIENCE)
        counted = [node.agent.firmware.counted() for node in (sender, receiver)]
        return {"time": task.result()} | {
            column: sum(of_one[counter] for of_one in counted for counter in counters)
            for column, counters in COUNTED[name].items()
        }


def table(name: str) -> str:
    """As it is checked in."""
    rows: list[Mapping[str, object]] = [
        {"loss": loss, "bytes": size, "messages": count, **row(name, loss, size)}
        for loss in LOSSES
        for size, count in MESSAGES.items()
    ]
    lines = [list(rows[0]), *[[str(value) for value in one.values()] for one in rows]]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    text = "\n".join("  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True)) for line in lines)
    return f"{_HEAD.format(name=name, bursts=LOSSES['bursts']['gemodel'])}{text}\n"


def path(name: str) -> Path:
    """Of a protocol's table."""
    return FOLDER / f"loss_{name}.txt"


def main(arguments: Sequence[str]) -> int:
    name = arguments[0]
    text = table(name)
    if "--write" in arguments:
        FOLDER.mkdir(exist_ok=True)
        path(name).write_text(text, encoding="utf-8")
    else:
        say(text)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
