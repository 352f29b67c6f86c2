"""Work on a host's cores: what host libraries and kernel-side firmware spend there, and what it costs.

EMP and AM-II leave the host little to do: a `Profile` prices their descriptors and notices. VIA's kernel agent, SSAM's
traps and Open-MX's driver run on the host itself. Such firmware is *hosted* (`Profile.hosted`): a doorbell is a trap on the
caller's core, a frame raises an interrupt on the core of its receive queue, whose softirq calls `Firmware.receive`. Every
action of hosted firmware takes effect when its core has finished what was spent before::

    work = host_work(nic)                       # in a protocol's plug
    work.spend("header", 64)                    # a kind of the protocol's own
    work.spend(COPY, 4096, source=work.core)    # bytes that this core's cache holds
    nic.send(frame)                             # leaves after both

A kind that a profile does not price costs nothing. Kinds are the causes in a run's results (`used`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Protocol, runtime_checkable

from protocols.core.completion import Completion

TRAP: Final = "trap"
"""Enter the kernel from a program and return: a system call or a fast trap. Charged for every doorbell of a hosted NIC."""
COPY: Final = "copy"
"""Copy bytes by the core. The rate depends on where the bytes are, see `Cost`."""
OFFLOAD: Final = "offload"
"""Start a copy by a copy engine (I/OAT). The core pays `fixed`; the engine moves the bytes at `rate`."""
INTERRUPT: Final = "interrupt"
"""Take a NIC's interrupt, up to the start of the softirq. Frames that arrive until that has ended need none."""
SOFTIRQ: Final = "softirq"
"""Take one frame from the receive ring in the softirq, before the firmware handles it."""
RETURN: Final = "return"
"""End a softirq and its interrupt: no frame waits any more, and programs of the core go on afterwards."""
WAKE: Final = "wake"
"""Wake a core that has been idle, before it takes an interrupt."""
SWITCH: Final = "switch"
"""Switch to another program: to one that slept until the kernel woke it, or that shares its core with others."""
STANDARD: Final = (TRAP, COPY, OFFLOAD, INTERRUPT, SOFTIRQ, RETURN, WAKE, SWITCH)
"""The kinds of every profile. A protocol names its own in `Protocol.host_work`."""

# Causes that are not priced by kind.
COMPUTE: Final = "compute"
"""Computation of a program."""
POLL: Final = "poll"
"""Polls of a program."""
LIBRARY: Final = "library"
"""Descriptors that a host library writes and reads (`Profile.post`, `translate`, `notice`)."""

ANYWHERE: Final = -1
"""The source of bytes that no core's cache holds."""


@dataclass(frozen=True, slots=True)
class Cost:
    """The cost of one kind of work. fixed: nanoseconds each time. rate: bit/s for its bytes; 0: they take no time.
    same_rate: for bytes that the working core itself touched last; shared_rate: for bytes touched last by a core that
    shares a cache with it; 0: as `rate`. Raises ValueError for negative values."""

    fixed: int = 0
    rate: int = 0
    same_rate: int = 0
    shared_rate: int = 0

    def __post_init__(self) -> None:
        for key in self.__slots__:
            value = getattr(self, key)
            if value < 0:
                raise ValueError(f"{key} of {value}: 0 or more")


@runtime_checkable
class HostWork(Protocol):
    """A host's cores, for the code that runs on them: a program's host library, and hosted firmware."""

    @property
    def core(self) -> int:
        """Number of the core on which the calling code runs: the program's, or the one that handles an interrupt."""
        ...

    @property
    def reached(self) -> int:
        """When the core has done what the calling code has spent, ns of the model; 0 where work is free."""
        ...

    def caught_up(self) -> Completion[None]:
        """Return what is done when the core has done what the calling program has spent: a program that awaits it sees
        what has come meanwhile. Where work is free, it is done at once, and awaiting it lets nothing else run."""
        ...

    @property
    def writer(self) -> int:
        """The core that has written into the program's memory last, by a copy of the firmware; ANYWHERE: none has."""
        ...

    def spend(self, kind: str, size: int = 0, source: int = ANYWHERE) -> None:
        """Occupy the core for one piece of work. size: bytes. source: the core that touched them last, or ANYWHERE. What
        the caller does afterwards takes effect when the core has done it."""
        ...

    def offload(self, size: int) -> None:
        """Copy bytes by the copy engine (OFFLOAD). Completions posted afterwards wait for it, frames sent do not."""
        ...

    def read_frames(self, most: int) -> int:
        """Trap into the kernel, and pass at most `most` waiting frames to `Firmware.receive` before returning; return
        their number. For NICs without interrupts (`Profile.polled`); elsewhere frames come by themselves, and it returns
        0 at no cost."""
        ...

    def receiving_core(self, frame: bytes) -> int:
        """Return the core that such a frame interrupts, by its receive queue; -1 if no one core does."""
        ...

    def bind(self, core: int) -> None:
        """Move the calling program to another core of its node, for all that follows. Raises ValueError for a core that
        the node does not have."""
        ...


CAUGHT_UP: Final[Completion[None]] = Completion("its core")
CAUGHT_UP.complete(None)


class FreeWork:
    """Work that costs nothing: of NICs without prices, and on the machine's clock, where it takes what it takes."""

    core: Final = 0
    reached: Final = 0
    writer: Final = ANYWHERE

    def caught_up(self) -> Completion[None]:
        return CAUGHT_UP

    def spend(self, kind: str, size: int = 0, source: int = ANYWHERE) -> None:
        """Do nothing."""

    def offload(self, size: int) -> None:
        """Do nothing."""

    def read_frames(self, most: int) -> int:  # noqa: ARG002
        return 0

    def receiving_core(self, frame: bytes) -> int:  # noqa: ARG002
        return -1

    def bind(self, core: int) -> None:
        """Do nothing: the program stays where the machine runs it."""


FREE_WORK: Final = FreeWork()


def host_work(nic: object) -> HostWork:
    """Return the host's cores as a NIC's environment offers them; FREE_WORK where it prices none."""
    return nic if isinstance(nic, HostWork) else FREE_WORK
