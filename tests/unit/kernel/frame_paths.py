"""All implementations of the frame path."""

from __future__ import annotations

from types import ModuleType

from testbed.kernel import interpreted_frames
from tests.unit.native_modules import native_module


def native_frames() -> ModuleType:
    return native_module("testbed.kernel.native_frames")


def frame_paths() -> list[ModuleType]:
    return [interpreted_frames, _looking_frames(), native_frames()]


def _looking_frames() -> ModuleType:
    """Return the interpreted frame path of a process that polls often."""
    looking = ModuleType("looking_frames")
    looking.FrameCalls = interpreted_frames.PollingFrameCalls  # type: ignore[attr-defined]
    looking.Arena = interpreted_frames.Arena  # type: ignore[attr-defined]
    return looking
