"""``@on(impairment, ...)`` runs a test on every carrier that supports the impairment, exactly or approximately.

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
from tests.semantics.datapaths import NOTHING, SLOW, CarrierName, Line, RealName, Run
from tests.semantics.tapped_links import Stamped
from tests.unit.fates.wire_frames import A, B, ethernet

MICROSECOND, MILLISECOND, SECOND = 10**3, 10**6, 10**9

CLOCKS: Final = 20 * MICROSECOND
"""Maximum difference of two readings of one instant: the kernel's stamps are wall-clock time, timers monotonic."""

TYPICAL: Final = round(2 * MILLISECOND * SLOW)
"""A quarter of the frames leave less late than this, even on a machine that stands still for most of the time because
somebody else has work for it."""

ALL: Final[tuple[CarrierName, ...]] = ("model", "relay", "tc", "netem")
REAL: Final[tuple[RealName, ...]] = ("relay", "tc", "netem")
NEEDS: Final[dict[CarrierName, tuple[str, ...]]] = {
    "model": (),
    "relay": ("root",),
    "tc": ("root", "bpf"),
    "netem": ("root", "netem"),
}

COVERED: Final[dict[CarrierName, set[str]]] = defaultdict(set)
"""Features that the tests have tried, by carrier."""


@dataclass(frozen=True, slots=True)
class CheckedImpairment:
    """Parameters of a test: a carrier with impairments in force. files: name -> text."""

    carrier: CarrierName
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
    excluded: Iterable[CarrierName] = (),
) -> pytest.MarkDecorator:
    """Give the test a `line` for each capable carrier.

    timed: the test checks times, which an emulated machine does not keep. also: tested properties beyond the
    impairment. excluded: carriers that another test covers.
    """
    parameters = []
    for name in ALL:
        if name in excluded or not can(name, forward, backward):
            continue
        COVERED[name] |= {*asked_for(forward), *asked_for(backward), *also}
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


def can(name: CarrierName, *impairments: Impairment) -> bool:
    return name == "model" or not any(
        assessment.fit is Fit.ABSENT for impairment in impairments for assessment in assess(name, impairment)
    )


def asked_for(impairment: Impairment) -> set[str]:
    """The features that an impairment asks for."""
    return {assessment.feature for assessment in assess("relay", impairment)}


# Frames


def marked(number: int, size: int = 64, source: int = A, destination: int = B) -> bytes:
    """A frame whose number is readable although some of its bits were flipped."""
    copies = (size - 14) // 4
    return ethernet(number.to_bytes(4, "big") * copies + bytes((size - 14) % 4), source=source, destination=destination)


def mark_of(frame: bytes) -> int:
    words = [frame[offset : offset + 4] for offset in range(14, len(frame) - 3, 4)]
    return int.from_bytes(statistics.mode(words), "big")


def marks_of(frames: Iterable[bytes]) -> list[int]:
    return [mark_of(frame) for frame in frames]


def flipped(frame: bytes, frame_sent: bytes) -> int:
    """Return the number of bits that differ."""
    assert len(frame) == len(frame_sent)
    return (int.from_bytes(frame, "big") ^ int.from_bytes(frame_sent, "big")).bit_count()


def paced(count: int, gap: int = 0, size: int = 64, first: int = 0) -> list[tuple[int, bytes]]:
    """Schedule `count` numbered frames, `gap` ns apart."""
    return [(index * gap, marked(first + index, size)) for index in range(count)]


# What is expected


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
        numerator = (
            max(time * rate, busy_until) + size * 8 * SECOND
        )  # in units of 1 / rate, so that nothing is rounded twice
        busy_until = numerator
        ends.append(busy_until // rate)
    return ends
