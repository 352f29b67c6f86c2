"""Programs that stall, and defective firmware, with the reports that are expected in every mode."""

from __future__ import annotations

import contextlib
from pathlib import Path

from testbed.workloads.form import Comm, Node
from tests.sim.mpi_script_files import TESTBED_IMPORT

OUTSIDE = Path(__file__).with_name("unruly_outside")
FILE_NAME = "stalled_programs.py"

SCRIPTS = {
    # name: the script, the rank that is reported, and the report.
    "both receive": (["comm.recv(source=1 - rank, tag=11)"], 0, r"waits for a receive from rank 1, tag 11.*, at {}:4 in"),
    "both send synchronously": (["comm.ssend('x', 1 - rank)"], 1, r"waits for a send to rank 0, tag 0, .*, at {}:4 in"),
    "another tag": (
        ["if rank == 0:", "    comm.send('x', 1, tag=1)", "else:", "    comm.recv(source=0, tag=2)"],
        1, r"waits for a receive from rank 0, tag 2, .*, at {}:7 in <module>",
    ),
    "iprobe": (
        ["def poll():", "    while not comm.iprobe(tag=7):", "        pass", "if rank:", "    poll()"],
        1, r"polls, at {}:[56] in poll",
    ),
    "test": (["request = comm.irecv(source=1 - rank)", "while not request.test()[0]:", "    pass"], 0, r"polls, at {}:[56] in"),
    "computes": (["if rank:", "    while True:", "        pass", "comm.recv()"], 1, r"runs, at {}:[56] in <module>"),
    "a lock": (
        ["import threading", "held = threading.Lock()", "held.acquire()", "if rank:", "    held.acquire()", "comm.recv()"],
        1, r"runs, at {}:8 in <module>",
    ),
    "has ended early": (["if rank:", "    raise SystemExit", "comm.recv()"], 0, r"waits for a receive from .*, at {}:6 in"),
    "catches all": (
        ["while True:", "    try:", "        comm.recv()", "    except BaseException:", "        pass"],
        1, r"waits for a receive .*, at {}:6 in <module>",
    ),
    "catches all and polls": (
        ["while True:", "    try:", "        while not comm.iprobe(): pass", "    except:", "        continue"],
        1, r"polls, at {}:6 in <module>",
    ),
    "polls at last": (
        ["try:", "    comm.recv()", "finally:", "    while not comm.iprobe(): pass"], 0, r"waits for a receive .*, at {}:5 in",
    ),
    "computes at last": (
        ["try:", "    comm.recv()", "finally:", "    n = 0", "    while True:", "        n += 1"],
        0, r"waits for a receive .*, at {}:5 in",
    ),
    "catches all and computes": (
        ["n = 0", "while True:", "    try:", "        while True:", "            n += 1", "    except BaseException:", "        pass"],
        0, r"runs, at {}:[78] in <module>",
    ),
}  # fmt: skip
REDUNDANT_LIVE = (
    "both send synchronously",
    "another tag",
    "has ended early",
    "a lock",
    "computes at last",
    "polls at last",
)
"""Programs that need no separate test in namespaces."""

BUSY = ("computes", "a lock", "catches all and computes")  # no virtual time passes


def stalled_scripts(folder: Path, name: str) -> tuple[str, str]:
    """Write the named script; return its path and a regular expression for the expected sentence."""
    body, rank, sentence = SCRIPTS[name]
    path = folder / "stalls.py"
    prologue = "comm = MPI.COMM_WORLD; rank = comm.rank"
    path.write_text(TESTBED_IMPORT + "\n".join([prologue, "print('rank', rank, 'begins')", *body]) + "\n")
    return str(path), rf"n{rank + 1}\b.* " + sentence.format(str(path).replace(".", r"\."))


async def poll_forever(comm: Comm, node: Node) -> None:  # noqa: ARG001
    request = await comm.irecv(source=1 - comm.rank, tag=5)
    while not await is_received(request):
        pass


async def is_received(request: object) -> bool:
    return (await request.test())[0]  # type: ignore[attr-defined]


async def receive_forever(comm: Comm, node: Node) -> None:  # noqa: ARG001
    await receive_message(comm)


async def receive_message(comm: Comm) -> None:
    await comm.recv(source=1 - comm.rank, tag=5)


async def suppress_all(comm: Comm, node: Node) -> None:  # noqa: ARG001
    while True:
        with contextlib.suppress(BaseException):
            await comm.recv(source=1 - comm.rank)


AWAITED = {
    "polls": (poll_forever, rf"polls, at \S*{FILE_NAME}:\d+ in is_received"),
    "waits": (receive_forever, rf"waits for a receive .*, at \S*{FILE_NAME}:\d+ in receive_message"),
    "catches all": (suppress_all, rf"waits for a receive .*, at \S*{FILE_NAME}:\d+ in suppress_all"),
}

# By the tag of the letter that makes the firmware of `unruly_outside/unruly` fail: the node, and the report.
# ruff: noqa: E501 -- scripts and sentences in tables

FAULTS = {
    101: (
        "n1",
        r"the firmware \(unruly\.protocol\.Firmware\) has raised KeyError:\n(.|\n)*in on_doorbell\n(.|\n)*no letter 0",
    ),
    102: ("n2", r"the firmware \(unruly\.protocol\.Firmware\) has raised IndexError:\n(.|\n)*no place for a letter"),
    103: (
        "n2",
        r"the firmware \(unruly\.protocol\.Firmware\) has raised ZeroDivisionError:\n(.|\n)*in on_timer\n(.|\n)*no time",
    ),
    104: (
        "n2",
        r"the firmware \(unruly\.protocol\.Firmware\) leaves its deadline in the past, \d+ ns before now: 10,000 calls",
    ),
    105: (
        "n1",
        r"a frame of 1515 bytes cannot be sent: the interface's MTU is 1500, which allows frames of up to 1514 bytes",
    ),
    106: ("n2", r"the host library \(unruly\.protocol\.Host\) has raised ValueError:\n(.|\n)*no such letter"),
}


async def send_a_letter(comm: Comm, node: Node, *, tag: int) -> None:  # noqa: ARG001
    """Send and receive letters forever, ignoring every error."""
    while True:
        try:
            if comm.rank == 0:
                await comm.Send(b"x", 1, tag=tag)
            await comm.Recv(bytearray(1), 1 - comm.rank, tag=tag + 1)
        except Exception:  # noqa: BLE001
            pass
