"""mpi4py's names for blocking programs: communicators, requests, datatypes, time."""

# ruff: noqa: N802, N999 -- the names are mpi4py's

from __future__ import annotations

import ctypes
import threading
from importlib.metadata import version
from typing import Any, Final

from protocols.mpi import mpi_names
from protocols.mpi.blocking_calls import (
    COMM_NULL,
    MESSAGE_NO_PROC,
    MESSAGE_NULL,
    REQUEST_NULL,
    Cartcomm,
    Comm,
    Distgraphcomm,
    Graphcomm,
    Message,
    Prequest,
    Request,
    Topocomm,
)
from protocols.mpi.datatypes import BY_TYPECODE
from protocols.mpi.device import Pickle, pickler
from protocols.mpi.mpi_errors import MPIError, missing_name
from protocols.mpi.mpi_names import *  # noqa: F403
from protocols.mpi.mpi_names import ERR_BUFFER, SUBVERSION, VERSION, Info
from testbed.mpi.mpi_programs import current
from testbed.spec.placement import node_of

__all__ = [
    "COMM_NULL",
    "COMM_SELF",
    "COMM_WORLD",
    "MESSAGE_NO_PROC",
    "MESSAGE_NULL",
    "REQUEST_NULL",
    "THREAD_FUNNELED",
    "THREAD_MULTIPLE",
    "THREAD_SERIALIZED",
    "THREAD_SINGLE",
    "Aint_add",
    "Aint_diff",
    "Alloc_mem",
    "Attach_buffer",
    "Cartcomm",
    "Comm",
    "Detach_buffer",
    "Distgraphcomm",
    "Finalize",
    "Free_mem",
    "Get_address",
    "Get_library_version",
    "Get_processor_name",
    "Get_version",
    "Graphcomm",
    "Init",
    "Init_thread",
    "Intracomm",
    "Is_finalized",
    "Is_initialized",
    "Is_thread_main",
    "Message",
    "Pcontrol",
    "Pickle",
    "Prequest",
    "Query_thread",
    "Request",
    "Topocomm",
    "Wtick",
    "Wtime",
    "get_vendor",
    "pickle",
]  # fmt: skip
__all__ += mpi_names.__all__

Intracomm = Comm
pickle = pickler
_typedict = BY_TYPECODE  # mpi4py programs use MPI._typedict[array.dtype.char]

THREAD_SINGLE = 0
THREAD_FUNNELED = 1
THREAD_SERIALIZED = 2
THREAD_MULTIPLE = 3


_DISTRIBUTION: Final = "netns-testbed"

COMM_WORLD: Comm
COMM_SELF: Comm


def __getattr__(name: str) -> Comm:
    """Return COMM_WORLD or COMM_SELF of the calling program: in the simulation, all ranks share this module."""
    if name == "COMM_WORLD":
        return current().world
    if name == "COMM_SELF":
        return current().self_comm
    if name.startswith("_"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    raise missing_name(name)


def Wtime() -> float:
    """Return the time in seconds of the run's clock."""
    return current().now() / 1e9


def Wtick() -> float:
    """Return the clock's resolution in seconds."""
    return 1e-9


def Get_processor_name() -> str:
    """Return the node's name, which is the same for all ranks of a node."""
    return node_of(current().name)


def Get_version() -> tuple[int, int]:
    """Return the version of the MPI standard."""
    return VERSION, SUBVERSION


def Get_library_version() -> str:
    """Return the library's name and version."""
    return f"testbed {version(_DISTRIBUTION)}, a subset of MPI 4.1"


def get_vendor() -> tuple[str, tuple[int, int, int]]:
    """Return the library's name and its version: major, minor, micro."""
    major, minor, micro = (int(part) for part in version(_DISTRIBUTION).split(".")[:3])
    return "testbed", (major, minor, micro)


def Attach_buffer(buf: bytearray | memoryview) -> None:
    """Attach a buffer for buffered sends; see `Comm.Attach_buffer`."""
    current().world.Attach_buffer(buf)


def Detach_buffer() -> object:
    """Wait until buffered messages are sent; return the buffer."""
    return current().world.Detach_buffer()


def Get_address(location: Any) -> int:
    """Return the address of a buffer; 0 for BOTTOM and for an empty buffer. Raises MPIError for a read-only one."""
    if location is None:
        return 0
    view = memoryview(location)
    if not view.nbytes:
        return 0
    if view.readonly:
        raise MPIError(ERR_BUFFER, "Get_address needs a writable buffer, got a read-only one")
    return ctypes.addressof(ctypes.c_char.from_buffer(view))


def Aint_add(base: int, disp: int) -> int:
    """Return the address `disp` bytes after `base`."""
    return base + disp


def Aint_diff(addr1: int, addr2: int) -> int:
    """Return the distance from `addr2` to `addr1` in bytes."""
    return addr1 - addr2


def Alloc_mem(size: int, info: Info | None = None) -> memoryview:  # noqa: ARG001  for mpi4py's signature
    """Return `size` bytes of zeroed memory."""
    return memoryview(bytearray(size))


def Free_mem(mem: memoryview) -> None:
    """Free memory that Alloc_mem has returned."""
    mem.release()


def Init() -> None:
    """Do nothing: a run initializes MPI."""


def Finalize() -> None:
    """Finalize, as a run does when the program ends. Raises MPIError if a send has failed after it was reported done."""
    current().finalize()


def Init_thread(required: int = THREAD_MULTIPLE) -> int:  # noqa: ARG001  for mpi4py's signature
    """Do nothing; return the supported thread level, whatever `required` is."""
    return THREAD_SINGLE


def Is_thread_main() -> bool:
    """Whether the calling thread is the program's own."""
    return threading.current_thread() is threading.main_thread()


def Pcontrol(level: int) -> None:
    """Do nothing: there is no profiler."""


def Is_initialized() -> bool:
    return True


def Is_finalized() -> bool:
    return False


def Query_thread() -> int:
    """Return THREAD_SINGLE: calls from other threads than the program's own raise RuntimeError, as does the program's
    next call."""
    return THREAD_SINGLE
