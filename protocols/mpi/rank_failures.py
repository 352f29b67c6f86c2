"""Ranks whose programs have failed, as reported by the launcher of the ranks.

A protocol detects a dead peer only when it sends to it; a rank that only waits for messages detects nothing. So, as in
other MPI implementations, the launcher reports a failed rank to the others. From then on all collective calls of a
communicator with that rank fail, those in progress and later ones (Bland and others, "Post-failure recovery of MPI
communication capability", 2013, section 3). They fail at every rank, since the library cannot determine which ranks wait
for each other. Point-to-point transfers continue: a program that is started again may send and receive.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Protocol

from protocols.mpi.mpi_errors import ERR_PROC_FAILED, MPIError


class PendingCall(Protocol):
    """A collective call in progress."""

    def on_failure(self) -> None:
        """Fail the call if a rank of its communicator has failed, or a message of the communicator's calls is lost."""
        ...


class RankFailures:
    """The failed ranks that have been reported to one rank. reasons: predicates for error messages ("has crashed"), by the
    device's rank. pending_calls: this rank's collective calls in progress."""

    __slots__ = ("pending_calls", "reasons")

    def __init__(self) -> None:
        self.reasons: Final[dict[int, str]] = {}
        self.pending_calls: Final[dict[PendingCall, None]] = {}  # an ordered set, so that simulations are reproducible

    def error(self, call: str, size: int, device_rank: Callable[[int], int]) -> MPIError | None:
        """Return the error of a collective call in a communicator with a failed rank; None if no rank has failed. size: of
        the communicator. device_rank: converts a rank of the communicator to the device's."""
        for rank in range(size):
            reason = self.reasons.get(device_rank(rank))
            if reason is not None:
                return MPIError(ERR_PROC_FAILED, f"{call}: rank {rank} {reason}")
        return None

    def report(self, rank: int, reason: str = "has crashed") -> None:
        """Record that a rank's program has failed, and wake the collective calls. reason: a predicate for error messages."""
        self.reasons[rank] = reason
        self.wake()

    def wake(self) -> None:
        """Let the calls in progress check whether they have failed."""
        for call in list(self.pending_calls):
            call.on_failure()
