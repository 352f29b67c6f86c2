"""What can be set of EMP. What the paper says is the default where it says something."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

MILLISECOND: Final = 1_000_000


@dataclass(slots=True)
class Settings:
    """Changed while the NIC runs, it holds for what is decided from then on; descriptors does not change.

    unit: frames per collection, which is acknowledged as a whole (section 4.1: 3, configurable on the fly).
    timeout: nanoseconds after which a collection is sent again (ours; the paper names no figure), doubled each time up to
    longest_timeout. give_up: nanoseconds without an acknowledgement after which a message is returned as failed; 0: never,
    as in the paper; the peer learns of it from the next message's header. window: unacknowledged collections to one peer
    (ours: below what a receiver's ring takes), without those of messages that seem to have no receive (see `sender`).
    held: message headers of one peer that are kept while no receive has been posted for them (ours: their data is dropped,
    as in the paper); with fewer than the peer has descriptors, a receive for a message behind so many others waits until
    these are received. descriptors: in the NIC's memory (section 4.2: 640).
    """

    unit: int = 3
    timeout: int = 5 * MILLISECOND
    longest_timeout: int = 160 * MILLISECOND
    give_up: int = 0
    window: int = 16
    held: int = 640
    descriptors: int = 640

    def __post_init__(self) -> None:
        if not 1 <= self.unit <= 255:
            raise ValueError(f"a collection of {self.unit} frames: 1 to 255")
        if not 0 < self.timeout <= self.longest_timeout:
            raise ValueError(f"a time-out of {self.timeout} ns: above 0, and at most {self.longest_timeout} ns")
        if self.give_up < 0:
            raise ValueError(f"giving up after {self.give_up} ns: 0 (never) or more")
        if self.window < 1 or self.held < 1:
            raise ValueError(f"a window of {self.window} collections and {self.held} held headers: 1 or more")
        if not 1 <= self.descriptors <= 65_536:
            raise ValueError(f"{self.descriptors} descriptors: 1 to 65536")
