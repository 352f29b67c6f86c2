"""Frames that a faulty sender or link damages."""

from __future__ import annotations

import random
from collections.abc import Callable


def damaged_at_times(chance: random.Random, frame: bytes, mend: Callable[[bytes], bytes]) -> bytes:
    """Return the frame, or, once in six times, one with another byte; half of those with a right check, by `mend`."""
    if chance.randrange(6):
        return frame
    place = chance.randrange(14, len(frame))
    damaged = frame[:place] + chance.randbytes(1) + frame[place + 1 :]
    return mend(damaged) if chance.randrange(2) else damaged
