"""What can be set of EMP. What the paper says is the default where it says something."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

MILLISECOND: Final = 1_000_000

MOST_DESCRIPTORS: Final = 65_536

MOST_TIME: Final = 1 << 62
"""Nanoseconds. So much later is a time, too: the kernel's times are 64 bits with a sign."""


@dataclass(slots=True)
class Settings:
    """Changed while the NIC runs, it holds for what is decided from then on; descriptors does not change. What cannot be is
    refused with ValueError, whenever it is set, and what was stays.

    unit: frames per collection, which is acknowledged as a whole (section 4.1: 3, configurable on the fly).
    timeout: nanoseconds after which a collection is sent again (ours; the paper names no figure), doubled each time up to
    longest_timeout. give_up: nanoseconds without an acknowledgement after which a message is returned as failed; 0: never,
    as in the paper; the peer learns of it from the next message's header. window: unacknowledged collections to one peer
    (ours: below what a receiver's ring takes), without those of messages that seem to have no receive (see `sender`).
    held: message headers of one peer that are kept while no receive has been posted for them (ours: their data is dropped,
    as in the paper); with fewer than the peer has descriptors, a receive for a message behind so many others waits until
    these are received; and it never has more under way than that. descriptors: in the NIC's memory (section 4.2: 640).
    """

    unit: int = 3
    timeout: int = 5 * MILLISECOND
    longest_timeout: int = 160 * MILLISECOND
    give_up: int = 0
    window: int = 16
    held: int = 640
    descriptors: int = 640

    def __post_init__(self) -> None:
        for name in self.__slots__:  # `fields` would cost each node process pages
            value = getattr(self, name)
            if type(value) is not int:
                raise ValueError(f"{name} {value!r}: a whole number")
        if not 1 <= self.unit <= 255:
            raise ValueError(f"a collection of {self.unit} frames: 1 to 255")
        if not 0 < self.timeout <= self.longest_timeout:
            raise ValueError(f"a time-out of {self.timeout} ns: above 0, and at most {self.longest_timeout} ns")
        if self.longest_timeout > MOST_TIME:
            raise ValueError(f"a longest time-out of {self.longest_timeout} ns: at most {MOST_TIME} ns")
        if self.give_up < 0:
            raise ValueError(f"giving up after {self.give_up} ns: 0 (never) or more")
        if self.window < 1:
            raise ValueError(f"a window of {self.window} collections: 1 or more")
        if not 1 <= self.held <= MOST_DESCRIPTORS:
            raise ValueError(f"{self.held} held headers: 1 to {MOST_DESCRIPTORS}")
        if not 1 <= self.descriptors <= MOST_DESCRIPTORS:
            raise ValueError(f"{self.descriptors} descriptors: 1 to {MOST_DESCRIPTORS}")

    def __setattr__(self, name: str, value: int) -> None:
        if hasattr(self, name):  # not the first time, when the others may be missing
            if name == "descriptors" and value != self.descriptors:
                raise ValueError(f"{value} descriptors: they do not change, and are {self.descriptors}")
            replace(self, **{name: value})
        object.__setattr__(self, name, value)
