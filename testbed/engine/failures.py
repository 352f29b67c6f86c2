"""Errors of a NIC's firmware, or of the host library above it, that end a run: their detection and their messages.

All modes report them alike: the node, the time, and the traceback or the deadline that stays in the past.
"""

from __future__ import annotations

from traceback import walk_tb
from typing import Final

from protocols.core.firmware import Firmware
from testbed.engine.tracebacks import program_traceback
from testbed.errors import FirmwareError, TestbedError

ETHERNET_HEADER: Final = 14
"""Size of the Ethernet header in bytes; the MTU does not include it."""

MAX_TIMER_CALLS: Final = 10_000
"""Number of consecutive calls of `Firmware.on_timer` that leave the deadline in the past at which the run ends. It is large
because some firmware checks only one of many timers per call."""


class DeadlineError(TestbedError):
    """A firmware's deadline stays in the past."""


class TimerCallCounter:
    """Counter of consecutive calls of `on_timer` that left a firmware's deadline in the past."""

    __slots__ = ("_count",)

    def __init__(self) -> None:
        self._count = 0

    def check(self, firmware: Firmware, now: int) -> None:
        """Count a call of `on_timer` that has returned. now: time of the call, ns. Raises DeadlineError at the call number
        `MAX_TIMER_CALLS`."""
        deadline = firmware.deadline
        if deadline is None or deadline > now:
            self._count = 0
            return
        self._count += 1
        if self._count >= MAX_TIMER_CALLS:
            raise DeadlineError(
                f"leaves its deadline in the past, {now - deadline} ns before now: {self._count:,} calls of on_timer have "
                "not moved it beyond now; on_timer must postpone the deadline, or clear it (None)"
            )


def failure(error: Exception, firmware: object, host: object, when: int, node: str = "") -> FirmwareError:
    """Make the error that reports an exception of firmware, or of the host library that the firmware called.

    firmware, host: the objects that were called, or wrappers of them. when: time of the call, ns. node: the node's name.
    """
    if isinstance(error, TestbedError) and not isinstance(error, DeadlineError):
        # An error of the testbed itself, such as a full disk under a history, is neither the firmware's nor the library's.
        return FirmwareError(str(error), when, node)
    library = type(getattr(host, "library", host))
    kind, owner = "firmware", type(getattr(firmware, "firmware", firmware))
    if _is_in_traceback(error, library, "on_completion"):
        kind, owner = "host library", library
    name = f"the {kind} ({owner.__module__}.{owner.__qualname__})"
    if isinstance(error, DeadlineError):
        return FirmwareError(f"{name} {error}", when, node)
    return FirmwareError(f"{name} has raised {type(error).__name__}:\n{program_traceback(error)}", when, node)


def _is_in_traceback(error: Exception, owner: type, method: str) -> bool:
    """Whether a class's method is in an error's traceback. Compares names: a compiled method has no code object."""
    module = next((base.__module__ for base in owner.__mro__ if method in vars(base)), None)
    return any(
        frame.f_code.co_name == method and frame.f_globals["__name__"] == module
        for frame, _ in walk_tb(error.__traceback__)
    )


def frame_too_long(size: int, mtu: int) -> ValueError:
    """Make the error for firmware that sends a frame above the MTU. size: bytes, including the Ethernet header. mtu: bytes
    after the Ethernet header."""
    return ValueError(
        f"a frame of {size} bytes cannot be sent: the interface's MTU is {mtu}, which allows frames of up to "
        f"{mtu + ETHERNET_HEADER} bytes with the Ethernet header"
    )
