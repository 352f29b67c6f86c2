#!/usr/bin/env python3
"""A message's way: the files of ours whose functions are called for one `comm.send` of four bytes, from the call until its
frame leaves the port, in the order in which they are entered first.

    ci/message_path.py                   print docs/internals/message.md
    ci/message_path.py --live            the same with the modes that need root

Recorded by Python's profiler hook in the program itself, for the fourth message of a pair that has exchanged three and has
been quiet since. Two things are not the message's and are left out: what the program does when the send has returned, as
it does before the frame leaves a NIC whose work takes time, and what answers a NIC's question for its firmware's deadline,
which follows every event and asks each of its timers.
"""

import argparse
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import testbed
from testbed import Cluster

ROOT = Path(testbed.__file__).parents[1]
ENDS = {
    ("testbed/sim/sim_direction.py", "enter"),
    ("testbed/sim/sim_network.py", "enter"),
    ("testbed/runtime/nodes/veth_port.py", "send"),
}
"""Where a frame leaves a NIC: what is entered there does not belong to the way any more."""
MODES: tuple[tuple[str, str, dict[str, Any], dict[str, Any]], ...] = (
    ("EMP, simulated", "emp", {}, {"mode": "sim"}),
    ("EMP, simulated with the prices of its paper's hardware", "emp", {}, {"mode": "sim", "profile": "emp-2001"}),
    ("AM-II, simulated", "am2", {"kind": "myrinet"}, {"mode": "sim"}),
    (
        "AM-II, simulated with the prices of its paper's hardware", "am2", {"kind": "myrinet"},
        {"mode": "sim", "profile": "now-1998"},
    ),
    ("EMP, live, in the program's own process", "emp", {}, {}),
    ("AM-II, live, in the program's own process", "am2", {"kind": "myrinet"}, {}),
)  # fmt: skip
BEFORE = 3  # messages


class Way:
    """Records files until a frame leaves. is_sent: the send has returned."""

    def __init__(self) -> None:
        self.files: dict[str, None] = {}
        self.is_sent = False
        self.is_over = False

    def note(self, frame: FrameType, event: str, _argument: object) -> None:
        if event != "call" or self.is_over:
            return
        path = Path(frame.f_code.co_filename)
        if path.is_relative_to(ROOT) and ".venv" not in path.parts and path != Path(__file__).resolve():
            callers = {code.co_name for code in callers_of(frame)}
            if "deadline" in callers or (self.is_sent and program.__name__ in callers):
                return
            name = path.relative_to(ROOT).as_posix()
            self.files[name] = None
            self.is_over = (name, frame.f_code.co_name) in ENDS


def callers_of(frame: FrameType | None) -> Iterator[CodeType]:
    """A call's code, its caller's, and so on."""
    while frame is not None:
        yield frame.f_code
        frame = frame.f_back


async def program(comm: Any, node: Any) -> list[str]:
    """Rank 0 sends; the others receive."""
    if comm.rank:
        for _ in range(BEFORE + 1):
            await comm.recv(source=0)
        return []
    for _ in range(BEFORE):
        await comm.send(b"abcd", 1)
    await node.sleep(5_000_000)
    way = Way()
    sys.setprofile(way.note)
    try:
        await comm.send(b"abcd", 1)
        way.is_sent = True
        if not way.is_over:
            await node.sleep(1_000_000)
    finally:
        sys.setprofile(None)
    return list(way.files)


def recorded(*, live: bool) -> Iterator[tuple[str, list[str]]]:
    with tempfile.TemporaryDirectory() as folder:
        for number, (title, protocol, shape, options) in enumerate(MODES):
            if options.get("mode") == "sim" or live:
                run = testbed.run(
                    Cluster.star(2, **shape), program, protocol=protocol, output=Path(folder, str(number)), **options
                )
                yield title, run.results["n1"]


def document(*, live: bool) -> str:
    lines = [
        "# A message's way",
        "",
        "The files that are entered for one `comm.send` of four bytes, from the call until its frame leaves the NIC's port,",
        "in the order in which they are entered first. Made by `ci/message_path.py --live`, which says what is left out.",
    ]
    for title, files in recorded(live=live):
        lines += [
            "",
            f"## {title}: {len(files)} files",
            "",
            *(f"{place}. `{name}`" for place, name in enumerate(files, 1)),
        ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--live", action="store_true")
    sys.stdout.write(document(live=parser.parse_args().live))
