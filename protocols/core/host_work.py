"""Work of host libraries and hosted firmware on a host's cores, and its costs.

EMP and AM-II do little work on the host: a `Profile` has the costs of posting and noticing descriptors. VIA's kernel
agent, SSAM's traps and Open-MX's driver run on the host. Such firmware is *hosted* (`Profile.hosted`): a doorbell is a
trap on the caller's core; a frame raises an interrupt on the core of its receive queue, where a softirq calls
`Firmware.receive`. Every action of hosted firmware takes effect when its core has finished the earlier work::

    work = host_work(nic)                       # in a protocol's plug
    work.spend("header", 64)                    # a kind that the protocol defines
    work.spend(COPY, 4096, source=work.core)    # bytes that are in this core's cache
    nic.send(frame)                             # leaves after both

A kind without a cost in the profile takes no time. The results of a run list busy times by kind (`used`).
"""

from __future__ import annotations

from typing import Final, Protocol, cast

from protocols.core.completion import Completion
from protocols.core.firmware import Buffer

TRAP: Final = "trap"
"""Enter the kernel from a program and return: a system call or a fast trap. Charged for every doorbell of a hosted
NIC."""
COPY: Final = "copy"
"""Copy bytes by the core. The rate depends on the caches that have the bytes, see `Cost`."""
OFFLOAD: Final = "offload"
"""Start a copy by a copy engine (I/OAT). The core pays `fixed`; the engine moves the bytes at `rate`."""
INTERRUPT: Final = "interrupt"
"""Take a NIC's interrupt, up to the start of the softirq. Frames that arrive during the softirq need no interrupt."""
SOFTIRQ: Final = "softirq"
"""Take one frame from the receive ring in the softirq, before the firmware handles it."""
RETURN: Final = "return"
"""End a softirq and its interrupt when no frame waits, so that the core's programs continue."""
WAKE: Final = "wake"
"""Wake a core that has been idle, before it takes an interrupt."""
SWITCH: Final = "switch"
"""Switch to another program: one that the kernel has woken, or one that shares its core with others."""
STANDARD: Final = (TRAP, COPY, OFFLOAD, INTERRUPT, SOFTIRQ, RETURN, WAKE, SWITCH)
"""The kinds of work that every protocol may charge. A protocol declares further kinds in `Protocol.host_work`."""

# Further causes of busy time, which have no `Cost`.
COMPUTE: Final = "compute"
"""Computation of a program."""
POLL: Final = "poll"
"""Polls of a program."""
LIBRARY: Final = "library"
"""Descriptors that a host library writes and reads (`Profile.post`, `translate`, `notice`)."""

ANYWHERE: Final = -1
"""Source of bytes that are not in any core's cache."""


class HostWork(Protocol):
    """A host's cores, as seen by the code that runs on them: a program's host library, and hosted firmware."""

    __slots__ = ()

    @property
    def core(self) -> int:
        """Number of the core that runs the calling code: the program's core, or the core that handles an interrupt."""
        ...

    @property
    def reached(self) -> int:
        """Simulated time, in ns, at which the calling code's work so far is done; 0 if work has no cost."""
        ...

    def caught_up(self) -> Completion[None]:
        """Return a completion that completes when the calling program's work so far is done. If work has no cost, the
        completion is done already, and awaiting it does not let other tasks run."""
        ...

    @property
    def writer(self) -> int:
        """Number of the core on which firmware last copied to the program's memory; ANYWHERE if none has."""
        ...

    def spend(self, kind: str, size: int = 0, source: int = ANYWHERE) -> None:
        """Charge work to the core; later actions of the caller take effect when it is done. kind: see STANDARD. size:
        bytes. source: the core that touched the bytes last, or ANYWHERE."""
        ...

    def offload(self, size: int) -> None:
        """Copy `size` bytes by the copy engine (OFFLOAD). Completions posted afterwards wait for the copy, frames do
        not."""
        ...

    def read_frames(self, limit: int) -> int:
        """Trap into the kernel, and pass at most `limit` waiting frames to `Firmware.receive`; return their number. For
        NICs without interrupts (`Profile.polled`); for other NICs this returns 0 at no cost."""
        ...

    def receiving_core(self, frame: bytes) -> int:
        """Return the core that a frame with this header interrupts, by its receive queue; -1 if the core is not
        fixed."""
        ...

    def bind(self, core: int) -> None:
        """Move the calling program to another core of its node. Raises ValueError for a core that the node does not
        have."""
        ...


class NodeActions(Protocol):
    """Action of a NIC whose functions serve the processes of one node (`Adapter.hosts`): with it, firmware of one
    function writes to the memory of another function's process. In an environment without it, firmware uses the other
    function's own actions instead."""

    __slots__ = ()

    def post_to(self, function: object, target: memoryview, data: Buffer, index: int) -> None:
        """Copy bytes to the memory of another function's process, and make a returned descriptor visible to that
        process, after this function's earlier work. The copy is charged to this function. function: the actions of the
        other function. target: as long as data."""
        ...


CAUGHT_UP: Final[Completion[None]] = Completion("the core")
CAUGHT_UP.complete(None)


class ZeroCostWork(HostWork):
    """Host cores without modelled costs, for NICs without a cost profile and in live mode."""

    __slots__ = ()

    @property
    def core(self) -> int:
        return 0

    @property
    def reached(self) -> int:
        return 0

    @property
    def writer(self) -> int:
        return ANYWHERE

    def caught_up(self) -> Completion[None]:
        return CAUGHT_UP

    def spend(self, kind: str, size: int = 0, source: int = ANYWHERE) -> None:
        """Do nothing."""

    def offload(self, size: int) -> None:
        """Do nothing."""

    def read_frames(self, limit: int) -> int:  # noqa: ARG002
        return 0

    def receiving_core(self, frame: bytes) -> int:  # noqa: ARG002
        return -1

    def bind(self, core: int) -> None:
        """Do nothing: the machine schedules the program."""


ZERO_COST_WORK: Final = ZeroCostWork()


def host_work(nic: object) -> HostWork:
    """Return the host's cores as modelled by a NIC's environment; ZERO_COST_WORK if it models none."""
    return cast(HostWork, nic) if hasattr(nic, "spend") else ZERO_COST_WORK


def node_actions(nic: object) -> NodeActions | None:
    """Return a NIC's environment if it has `NodeActions`, else None."""
    return cast(NodeActions, nic) if hasattr(nic, "post_to") else None
