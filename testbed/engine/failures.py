"""Detection and messages of errors in a NIC's firmware, or in the host library above it, that end a run.

The message is the same in all modes. It has the node, the time, and the call that raised or the deadline that does not move.
"""

from __future__ import annotations

from traceback import walk_tb
from typing import Final

from protocols.core.firmware import Firmware
from testbed.engine.tracebacks import program_traceback
from testbed.errors import FirmwareError, TestbedError

ETHERNET_HEADER: Final = 14
"""Bytes of the Ethernet header, which the MTU does not count."""

MAX_TIMER_CALLS: Final = 10_000
"""Maximum of consecutive calls of `Firmware.on_timer` that leave the deadline in the past. More than 1, since some firmware
checks one of many timers per call."""


class DeadlineError(TestbedError):
    """The deadline of a firmware stays in the past."""


class TickCount:
    """Counter of consecutive calls of `on_timer` that left a firmware's deadline in the past."""

    __slots__ = ("_count",)

    def __init__(self) -> None:
        self._count = 0

    def check(self, firmware: Firmware, now: int) -> None:
        """Count a call of `on_timer` at time `now`. Raises DeadlineError."""
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

    when: nanoseconds.
    """
    if isinstance(error, TestbedError) and not isinstance(error, DeadlineError):
        # Of the testbed, such as a history on a full disk: no program is blamed.
        return FirmwareError(str(error), when, node)
    library = type(getattr(host, "library", host))  # it may be wrapped (`testbed.runtime.nodes.run_progress`)
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
    """Make the error for firmware that sends a frame above the MTU. size: bytes, including the Ethernet header."""
    return ValueError(
        f"a frame of {size} bytes cannot be sent: the interface's MTU is {mtu}, which lets it take "
        f"{mtu + ETHERNET_HEADER} bytes with the Ethernet header"
    )
