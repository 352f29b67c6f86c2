"""``@on(impairment, ...)`` runs a test on every datapath that supports the impairment, exactly or approximately.

Support is taken from the table of datapaths. The module also has such tests' common checks.
"""

from __future__ import annotations

import os
import statistics
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import pytest

from testbed.kernel.datapaths import Fit, assess
from testbed.spec.layout import Impairment
from tests.semantics.datapaths import NOTHING, SLOW, DatapathName, Line, RealName, Run
from tests.semantics.tapped_links import Stamped
from tests.unit.fates.wire_frames import A, B, ethernet

MICROSECOND, MILLISECOND, SECOND = 10**3, 10**6, 10**9

CLOCKS: Final = 20 * MICROSECOND
"""Maximum difference of two readings of one instant: the kernel's stamps are wall-clock time, timers monotonic."""

TYPICAL: Final = round(2 * MILLISECOND * SLOW)
"""Maximum lateness of a quarter of the frames, which holds even on a machine whose processors are mostly busy elsewhere."""

ALL: Final[tuple[DatapathName, ...]] = ("model", "relay", "tc", "netem")
REAL: Final[tuple[RealName, ...]] = ("relay", "tc", "netem")
NEEDS: Final[dict[DatapathName, tuple[str, ...]]] = {
    "model": (),
    "relay": ("root",),
    "tc": ("root", "bpf"),
    "netem": ("root", "netem"),
}

COVERED: Final[dict[DatapathName, set[str]]] = defaultdict(set)
"""Features that the tests have tried, by datapath."""


@dataclass(frozen=True, slots=True)
class CheckedImpairment:
    """Parameters of a test: a datapath with impairments in force. files: name -> text."""

    datapath: DatapathName
    forward: Impairment
    backward: Impairment
    files: tuple[tuple[str, str], ...]


def on(
    forward: Impairment,
    backward: Impairment = NOTHING,
    *,
    files: dict[str, str] | None = None,
    timed: bool = False,
    also: Iterable[str] = (),
    excluded: Iterable[DatapathName] = (),
) -> pytest.MarkDecorator:
    """Give the test a `line` for each capable datapath.

    timed: the test checks times, which an emulated machine does not keep. also: tested properties beyond the
    impairment. excluded: datapaths that another test covers.
    """
    parameters = []
    for name in ALL:
        if name in excluded or not supports(name, forward, backward):
            continue
        COVERED[name] |= {*requested_features(forward), *requested_features(backward), *also}
        marks = [pytest.mark.requires(*NEEDS[name])] if NEEDS[name] else []
        if timed and name != "model":
            marks.append(pytest.mark.requires("steady-time"))
        checked = CheckedImpairment(name, forward, backward, tuple((files or {}).items()))
        parameters.append(pytest.param(checked, id=name, marks=marks))
    return pytest.mark.parametrize("line", parameters, indirect=True)


def placed_at(impairment: Impairment, name: str, path: str) -> Impairment:
    """Return the impairment with the path of a file in place of its name."""
    keys: dict[str, Any] = {key: path for key in ("jitter_file", "rate_trace") if getattr(impairment, key) == name}
    return replace(impairment, **keys) if keys else impairment


def supports(name: DatapathName, *impairments: Impairment) -> bool:
    return name == "model" or not any(
        assessment.fit is Fit.ABSENT for impairment in impairments for assessment in assess(name, impairment)
    )


def requested_features(impairment: Impairment) -> set[str]:
    """Return the features that an impairment needs."""
    return {assessment.feature for assessment in assess("relay", impairment)}


# Frames


def marked(number: int, size: int = 64, source: int = A, destination: int = B) -> bytes:
    """Return a frame whose number is readable even with some flipped bits."""
    copies = (size - 14) // 4
    return ethernet(number.to_bytes(4, "big") * copies + bytes((size - 14) % 4), source=source, destination=destination)


def mark_of(frame: bytes) -> int:
    words = [frame[offset : offset + 4] for offset in range(14, len(frame) - 3, 4)]
    return int.from_bytes(statistics.mode(words), "big")


def marks_of(frames: Iterable[bytes]) -> list[int]:
    return [mark_of(frame) for frame in frames]


def flipped(frame: bytes, original: bytes) -> int:
    """Return the number of bits that differ."""
    assert len(frame) == len(original)
    return (int.from_bytes(frame, "big") ^ int.from_bytes(original, "big")).bit_count()


def paced(count: int, gap: int = 0, size: int = 64, first: int = 0) -> list[tuple[int, bytes]]:
    """Schedule `count` numbered frames, `gap` ns apart."""
    return [(index * gap, marked(first + index, size)) for index in range(count)]


# Checks


def check_fates(line: Line, run: Run, direction: str = "forward") -> None:
    """Check that the arrived frames and their fates are those of the model, where the table says "exact"."""
    assert direction in ("forward", "backward")
    if line.exact("repeatable fates"):
        assert run.frames == line.expected(run, "forward" if direction == "forward" else "backward").frames


def check_times(line: Line, arrived: Stamped, deadlines: Sequence[int]) -> None:
    """Check that no frame left early, and that a quarter of them were hardly late; in virtual time, that none was late."""
    assert len(arrived) == len(deadlines)
    lateness = [time - deadline for (time, _), deadline in zip(arrived, deadlines, strict=True)]
    if line.virtual:
        assert lateness == [0] * len(deadlines)
        return
    assert min(lateness) >= -CLOCKS, f"a frame came {-min(lateness)} ns before it was due"
    if not os.environ.get("TESTBED_VM"):
        typical_lateness = sorted(lateness)[len(lateness) // 4]
        assert typical_lateness < TYPICAL, f"three quarters of the frames were {typical_lateness:,} ns late or more"


def on_the_wire(offered: Stamped, sizes: Sequence[int], rate: int) -> list[int]:
    """Return when each frame has left the wire, without loss. sizes: bytes of each at `rate` bit/s."""
    ends, busy_until = [], 0
    for (time, _), size in zip(offered, sizes, strict=True):
        busy_until = max(time * rate, busy_until) + size * 8 * SECOND  # in units of 1 / rate ns: rounded only once
        ends.append(busy_until // rate)
    return ends
