"""Settings of EMP. Where the paper states a value, it is the default."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

MILLISECOND: Final = 1_000_000

MAX_DESCRIPTORS: Final = 65_536
MAX_UNIT: Final = 255
"""Frames per collection."""

MAX_TIME: Final = 1 << 62
"""Nanoseconds. The kernel's times are signed 64-bit numbers: the sum of such a time and this limit does not overflow."""


@dataclass(slots=True)
class Settings:
    """Settings of EMP.

    A change while the NIC runs applies to later decisions; `descriptors` cannot change. Assignment of an invalid value
    raises ValueError and leaves the setting unchanged. A NIC whose host has called `host.Endpoint.post_unit` continues with
    a copy, to which changes of the original do not apply.

    unit: frames per collection, the unit of acknowledgement (section 4.1: 3, configurable on the fly by
    `host.Endpoint.post_unit`). timeout: nanoseconds after which a collection is resent (ours; the paper states no
    figure), doubled with each resend up to longest_timeout. give_up: nanoseconds without an acknowledgement after which
    a message fails, at its next timeout; 0: never (the paper mentions no limit). The peer drops a failed message when
    the header of the next one arrives.
    window: maximum unacknowledged collections to one peer (ours: below the capacity of a receiver's ring), not counting
    those of parked messages (see `sender`). held: maximum message headers of one peer that are kept without a receive
    (ours; their data is dropped, as in the paper). A NIC never has more messages in progress than descriptors. If held
    is less than the peer's descriptors, a receive for a later message may wait until earlier ones are received.
    descriptors: number of descriptors in the NIC's memory (section 4.2: 640).
    """

    unit: int = 3
    timeout: int = 5 * MILLISECOND
    longest_timeout: int = 160 * MILLISECOND
    give_up: int = 0
    window: int = 16
    held: int = 640
    descriptors: int = 640

    def __post_init__(self) -> None:
        for name in self.__slots__:  # `dataclasses.fields` would cost each node process memory pages
            value = getattr(self, name)
            if type(value) is not int:
                raise ValueError(f"{name} {value!r}: a whole number")
        check_unit(self.unit)
        if not 0 < self.timeout <= self.longest_timeout:
            raise ValueError(f"a time-out of {self.timeout} ns: above 0, and at most {self.longest_timeout} ns")
        if self.longest_timeout > MAX_TIME:
            raise ValueError(f"a longest time-out of {self.longest_timeout} ns: at most {MAX_TIME} ns")
        if self.give_up < 0:
            raise ValueError(f"giving up after {self.give_up} ns: 0 (never) or more")
        if self.window < 1:
            raise ValueError(f"a window of {self.window} collections: 1 or more")
        if not 1 <= self.held <= MAX_DESCRIPTORS:
            raise ValueError(f"{self.held} held headers: 1 to {MAX_DESCRIPTORS}")
        if not 1 <= self.descriptors <= MAX_DESCRIPTORS:
            raise ValueError(f"{self.descriptors} descriptors: 1 to {MAX_DESCRIPTORS}")

    def __setattr__(self, name: str, value: int) -> None:
        if hasattr(self, name):  # during initialization, other attributes may be missing
            if name == "descriptors" and value != self.descriptors:
                raise ValueError(f"{value} descriptors: the number cannot change, and is {self.descriptors}")
            replace(self, **{name: value})
        object.__setattr__(self, name, value)


def check_unit(unit: int) -> None:
    """Raise ValueError for a number of frames per collection that is not 1 to MAX_UNIT."""
    if type(unit) is not int or not 1 <= unit <= MAX_UNIT:
        raise ValueError(f"a collection of {unit!r} frames: 1 to {MAX_UNIT}, in whole numbers")
