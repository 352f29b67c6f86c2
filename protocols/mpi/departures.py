"""Ranks whose programs have ended before their time, as the environment of a program reports them.

A protocol notices a dead peer when it sends to it, if at all; a rank that only waits for messages notices nothing. In every
MPI the process that has started the ranks tells the others of one that has died. From then on collective calls of a
communicator with that rank fail, those in progress and later ones (Bland and others, "Post-failure recovery of MPI
communication capability", 2013, section 3): at every rank, since nobody knows which ranks wait for each other. Transfers
between two ranks are not concerned: a program that is started again may send and receive.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Protocol

from protocols.mpi.mpi_errors import ERR_PROC_FAILED, MPIError


class Waiting(Protocol):
    """A collective call that waits."""

    def on_failure(self) -> None:
        """Fail, if a rank of the call has departed, or a message of its communicator's calls is lost."""
        ...


class Departures:
    """Reported ends. known: what has happened, by the device's rank. waiting: calls that wait."""

    __slots__ = ("known", "waiting")

    def __init__(self) -> None:
        self.known: Final[dict[int, str]] = {}
        self.waiting: Final[dict[Waiting, None]] = {}  # in order, so that a simulation repeats

    def error(self, call: str, size: int, peer: Callable[[int], int]) -> MPIError | None:
        """Return the error of a call in a communicator with a rank that has departed; None where all are there. peer:
        converts a rank of the communicator, below `size`, to the device's."""
        for rank in range(size):
            what = self.known.get(peer(rank))
            if what is not None:
                return MPIError(ERR_PROC_FAILED, f"{call}: rank {rank} {what}")
        return None

    def report(self, rank: int, what: str = "has crashed") -> None:
        """Report the end of a rank's program. what: the end of a sentence, for errors."""
        self.known[rank] = what
        self.wake()

    def wake(self) -> None:
        """Let the calls that wait look whether they fail."""
        for call in list(self.waiting):
            call.on_failure()
