"""mpi4py's names for a program that blocks, on every rank of a run: communicators, requests, datatypes, time."""

# ruff: noqa: N802, N999 -- the names are mpi4py's

from __future__ import annotations

from protocols.mpi import names
from protocols.mpi.blocking import REQUEST_NULL, Comm, Message, Prequest, Request
from protocols.mpi.names import *  # noqa: F403
from testbed.mpi.programs import current

__all__ = [
    "COMM_SELF", "COMM_WORLD", "REQUEST_NULL", "THREAD_FUNNELED", "THREAD_MULTIPLE", "THREAD_SERIALIZED", "THREAD_SINGLE",
    "Comm", "Finalize", "Get_processor_name", "Get_version", "Init", "Intracomm", "Is_finalized", "Is_initialized",
    "Message", "Prequest", "Query_thread", "Request", "Wtick", "Wtime",
]  # fmt: skip
__all__ += names.__all__

Intracomm = Comm

THREAD_SINGLE = 0
THREAD_FUNNELED = 1
THREAD_SERIALIZED = 2
THREAD_MULTIPLE = 3


COMM_WORLD: Comm
COMM_SELF: Comm


def __getattr__(name: str) -> Comm:
    """COMM_WORLD and COMM_SELF are those of the program that asks: in the simulation, all ranks share this module."""
    if name == "COMM_WORLD":
        return current().world
    if name == "COMM_SELF":
        return current().alone
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def Wtime() -> float:
    """Seconds, of the mode's clock: virtual in the simulation, the machine's in namespaces."""
    return current().now() / 1e9


def Wtick() -> float:
    """Seconds between two readings that differ."""
    return 1e-9


def Get_processor_name() -> str:
    """The node's name."""
    return current().name


def Get_version() -> tuple[int, int]:
    """Of the standard."""
    return 4, 1


def Init() -> None:
    """A run has done it."""


def Finalize() -> None:
    """A run does it."""


def Is_initialized() -> bool:
    return True


def Is_finalized() -> bool:
    return False


def Query_thread() -> int:
    """THREAD_SINGLE: calls from other threads than the program's own raise RuntimeError."""
    return THREAD_SINGLE
