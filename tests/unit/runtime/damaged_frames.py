"""Frames damaged by a faulty sender or link."""

from __future__ import annotations

import random
from collections.abc import Callable


def maybe_damaged(rng: random.Random, frame: bytes, fix_check: Callable[[bytes], bytes]) -> bytes:
    """Change a byte of one frame in six; `fix_check` corrects the check of half of these."""
    if rng.randrange(6):
        return frame
    position = rng.randrange(14, len(frame))
    damaged_frame = frame[:position] + rng.randbytes(1) + frame[position + 1 :]
    return fix_check(damaged_frame) if rng.randrange(2) else damaged_frame
