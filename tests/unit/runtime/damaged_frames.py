"""Frames that a faulty sender or link damages."""

from __future__ import annotations

import random
from collections.abc import Callable


def damaged_at_times(rng: random.Random, frame: bytes, mend: Callable[[bytes], bytes]) -> bytes:
    """Return the frame, or, once in six times, one with a changed byte; half of those with a correct check, by `mend`."""
    if rng.randrange(6):
        return frame
    position = rng.randrange(14, len(frame))
    damaged_frame = frame[:position] + rng.randbytes(1) + frame[position + 1 :]
    return mend(damaged_frame) if rng.randrange(2) else damaged_frame
