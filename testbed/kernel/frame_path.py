"""Frame path: the calls by which frames enter and leave packet sockets, native where the compiled build has them."""

from __future__ import annotations

try:
    from testbed.kernel.native_frames import Arena, FrameCalls
except ImportError:
    from testbed.kernel.interpreted_frames import Arena, FrameCalls

__all__ = ["Arena", "FrameCalls"]
