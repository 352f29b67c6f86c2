"""Fates of frames, by rule or by chance, their log, and the replay of a log.

A fate is a function of seed, link, direction, flow and number, not of time or of a frame's other bytes. A drop by a full
queue is not a fate: it is counted, not logged. Jitter is not a fate either: every frame has it, and the seed reproduces it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Final

from testbed.fates.flows import Flow
from testbed.json_text import loads
from testbed.spec.layout import Impairment


@dataclass(frozen=True, slots=True)
class Fate:
    """The fate of a frame; the default is a pass.

    delay: nanoseconds added to the direction's delay; later frames may overtake. flips: number of bits to flip.
    positions: positions of these bits, if already chosen; bit 0 is the most significant bit of the first byte. duplicate:
    the frame arrives twice. reorder: the frame skips the direction's delay. sets: names of fields and their new values.
    within: name of the field whose bits are flipped; empty: any bits of the frame. mend: checksums and CRCs are recomputed
    afterwards.
    """

    drop: bool = False
    delay: int = 0
    flips: int = 0
    positions: tuple[int, ...] = ()
    duplicate: bool = False
    reorder: bool = False
    sets: tuple[tuple[str, int], ...] = ()
    within: str = ""
    mend: bool = False

    def __post_init__(self) -> None:
        if self.delay < 0 or self.flips < 0:
            raise ValueError(f"delay and flips must be 0 or more, got {self.delay} and {self.flips}")

    def __or__(self, other: Fate) -> Fate:
        """Combine two fates of one frame."""
        return Fate(
            self.drop or other.drop,
            self.delay + other.delay,
            self.flips + other.flips,
            self.positions + other.positions,
            self.duplicate or other.duplicate,
            self.reorder or other.reorder,
            self.sets + other.sets,
            self.within or other.within,
            self.mend or other.mend,
        )

    @property
    def changes(self) -> bool:
        """Whether the frame's bytes change."""
        return bool(self.flips or self.sets)


PASS: Final = Fate()
DROP: Final = Fate(drop=True)
DUPLICATE: Final = Fate(duplicate=True)
REORDER: Final = Fate(reorder=True)


def delay(nanoseconds: int) -> Fate:
    """Make the fate of a frame that arrives `nanoseconds` later; later frames may overtake it."""
    if nanoseconds <= 0:
        raise ValueError(f"delay must be more than 0 ns, got {nanoseconds}")
    return Fate(delay=nanoseconds)


def corrupt(bits: int = 1, within: str = "", *, mend: bool = False) -> Fate:
    """Make the fate of a frame with `bits` flipped bits, which the hash chooses. within: name of a field, to flip only bits
    of that field. mend: recompute checksums and CRCs."""
    if bits <= 0:
        raise ValueError(f"bits must be more than 0, got {bits}")
    return Fate(flips=bits, within=within, mend=mend)


def set_fields(values: Mapping[str, int], *, mend: bool = True) -> Fate:
    """Make the fate of a frame in which fields are set; fields that the frame does not have are ignored.

    values: by name of the field, ``{"emp.tag": 7}``. mend: recompute checksums and CRCs, so that the frame is valid with
    different contents; otherwise a receiver that checks them discards it.
    """
    if not values:
        raise ValueError("values must have at least one field to set")
    return Fate(sets=tuple(values.items()), mend=mend)


RULE: Final = "rule"
LOSS: Final = "loss"
GEMODEL: Final = "gemodel"
PATTERN: Final = "loss_pattern"
CORRUPT: Final = "corrupt"
DUPLICATION: Final = "duplicate"
REORDERING: Final = "reorder"
"""Causes of fates, named after the impairment's keys."""


@dataclass(frozen=True, slots=True)
class Record:
    """A logged fate. n: the frame's number in its flow, from 1. epoch: number of times that the direction has restarted its
    counts because its impairment was changed. cause: `RULE`, `LOSS` or another of these constants. detail: a rule's text."""

    link: str
    direction: str
    epoch: int
    flow: Flow
    n: int
    cause: str
    fate: Fate
    detail: str = ""

    def to_line(self) -> str:
        """Format the record as one line of JSON. Equal records have equal lines."""
        location = _location_json(self.link, self.direction, self.epoch, self.flow)
        return f'{location}, "n": {self.n}, {_fate_json(self.cause, self.fate, self.detail)}'

    @classmethod
    def from_line(cls, line: str) -> Record:
        """Parse a line of `to_line`. Raises ValueError for anything else."""
        try:
            data = loads(line)
            ethertype, destination, source, *key = data["flow"]
            fate: dict[str, Any] = {name: _to_tuples(value) for name, value in data["fate"].items()}
            return cls(
                str(data["link"]),
                str(data["direction"]),
                int(data["epoch"]),
                Flow(int(ethertype), int(destination), int(source), tuple([int(value) for value in key])),
                int(data["n"]),
                str(data["cause"]),
                Fate(**fate),
                str(data["detail"]),
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise ValueError(f"not a record of a fate: {line[:80]!r}") from error

    def describe(self) -> str:
        """Describe the fate, its cause, and the frame, for users."""
        detail = f" {self.detail!r}" if self.detail else ""
        return f"{_describe_changes(self.fate)} by {self.cause}{detail}, frame {self.n} of flow {self.flow}"


def _to_tuples(value: Any) -> Any:
    """Convert lists, also nested lists, to tuples."""
    return tuple([_to_tuples(item) for item in value]) if isinstance(value, list) else value


def _describe_changes(fate: Fate) -> str:
    changes = [f"{name} set to {value:#x}" for name, value in fate.sets]
    if fate.drop:
        changes.append("dropped")
    if fate.delay:
        changes.append(f"delayed for {fate.delay} ns")
    if fate.flips:
        changes.append(f"{fate.flips} bits flipped" if fate.flips > 1 else "1 bit flipped")
    if fate.mend and fate.changes:
        changes.append("its checks mended")
    if fate.duplicate:
        changes.append("duplicated")
    if fate.reorder:
        changes.append("sent ahead")
    return " and ".join(changes) or "passed"


# Frames wait while a relay writes their fates. So parts that many lines have in common are cached.


@lru_cache(maxsize=4096)
def _location_json(link: str, direction: str, epoch: int, flow: Flow) -> str:
    """Format the first part of a line, without its end."""
    numbers = [flow.ethertype, flow.destination, flow.source, *flow.key]
    location = {"link": link, "direction": direction, "epoch": epoch, "flow": numbers}
    return json.dumps(location, ensure_ascii=False)[:-1]


@lru_cache(maxsize=256)
def _fate_json(cause: str, fate: Fate, detail: str) -> str:
    """Format the second part of a line, without its beginning."""
    values = {key: value for key in _FATE_KEYS if (value := getattr(fate, key))}
    return json.dumps({"cause": cause, "fate": values, "detail": detail}, ensure_ascii=False)[1:]


_FATE_KEYS: Final = ("drop", "delay", "flips", "positions", "duplicate", "reorder", "sets", "within", "mend")


FrameKey = tuple[int, Flow, int]
"""Epoch, flow, n."""


class Replay:
    """Replay of a log: frames get the fates that are logged for their flow and number. The impairments of the directions
    must be those of `without_chance`."""

    __slots__ = ("_fates", "applied")

    def __init__(self, log: Iterable[Record]) -> None:
        self._fates: dict[tuple[str, str], dict[FrameKey, Fate]] = {}
        self.applied = 0
        """Number of frames to which the logged fate was applied; after a complete replay, the number of frames in the
        log."""
        for record in log:
            fates = self._fates.setdefault((record.link, record.direction), {})
            key = (record.epoch, record.flow, record.n)
            fates[key] = fates.get(key, PASS) | record.fate

    def __len__(self) -> int:
        """Return the number of frames in the log."""
        return sum(len(fates) for fates in self._fates.values())

    def fates(self, link: str, direction: str) -> Mapping[FrameKey, Fate]:
        """Return the fates of one direction, by epoch, flow and number."""
        return self._fates.get((link, direction), {})

    def changes(self) -> list[Fate]:
        """List the distinct fates that set fields."""
        return list({fate: None for fates in self._fates.values() for fate in fates.values() if fate.sets})


def without_chance(impairment: Impairment) -> Impairment:
    """Return an impairment without the losses, changes and rules whose fates a log records, so that only a replay decides
    them."""
    return replace(
        impairment,
        loss=0.0,
        gemodel=(),
        loss_pattern="",
        corrupt=0.0,
        corrupt_bits=0,
        duplicate=0.0,
        reorder=0.0,
        rules=(),
    )
