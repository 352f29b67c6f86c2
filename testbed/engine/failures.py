"""Errors of a NIC's firmware, or of the host library above it, that end a run: detection and messages.

The message is the same in all modes: the node, the time, and the call that has raised, or the deadline that does not move.
"""

from __future__ import annotations

from traceback import walk_tb
from typing import Final

from protocols.core.firmware import Firmware
from testbed.engine.tracebacks import program_traceback
from testbed.errors import FirmwareError, TestbedError

HEADER: Final = 14
"""Bytes of the Ethernet header, which the MTU does not count."""

MAX_TICKS: Final = 10_000
"""Calls of `Firmware.on_timer` in a row after which the deadline may still lie in the past: some firmware checks one of many
timers per call."""


class DeadlineError(TestbedError):
    """Firmware whose deadline stays in the past."""


class TickCount:
    """Counter of a firmware's calls of `on_timer` since its deadline was in the future."""

    __slots__ = ("_count",)

    def __init__(self) -> None:
        self._count = 0

    def check(self, firmware: Firmware, now: int) -> None:
        """Count a call of `on_timer` at that time. Raises DeadlineError."""
        deadline = firmware.deadline
        if deadline is None or deadline > now:
            self._count = 0
            return
        self._count += 1
        if self._count >= MAX_TICKS:
            raise DeadlineError(
                f"leaves its deadline in the past, {now - deadline} ns before now: {self._count:,} calls of tick have not "
                "moved it beyond now; tick must put the deadline off, or take it away (None)"
            )


def failure(error: Exception, firmware: object, host: object, when: int, node: str = "") -> FirmwareError:
    """Make the error that reports an exception of firmware at a time, or of the host library that the firmware called."""
    library = type(getattr(host, "library", host))  # it may be watched (`testbed.runtime.nodes.run_progress`)
    kind, culprit = "firmware", type(getattr(firmware, "firmware", firmware))
    if _has_passed(error, library, "completed"):
        kind, culprit = "host library", library
    name = f"the {kind} ({culprit.__module__}.{culprit.__qualname__})"
    if isinstance(error, DeadlineError):
        return FirmwareError(f"{name} {error}", when, node)
    return FirmwareError(f"{name} has raised {type(error).__name__}:\n{program_traceback(error)}", when, node)


def _has_passed(error: Exception, owner: type, method: str) -> bool:
    """Whether an error has passed a class's method. Told by names: a compiled method has no code object of its own."""
    module = next((base.__module__ for base in owner.__mro__ if method in vars(base)), None)
    return any(
        frame.f_code.co_name == method and frame.f_globals["__name__"] == module
        for frame, _ in walk_tb(error.__traceback__)
    )


def too_long(size: int, mtu: int) -> ValueError:
    """Make the error for firmware that sends a frame above the MTU. size: bytes, including the Ethernet header."""
    return ValueError(
        f"a frame of {size} bytes cannot be sent: the interface's MTU is {mtu}, which lets it take {mtu + HEADER} bytes "
        "with the Ethernet header"
    )
