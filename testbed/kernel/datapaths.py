"""Datapath selection: which features of an impairment each datapath implements exactly, approximately or not at all.

`TABLE` lists every feature: the semantics suite tests it, ``testbed doctor`` prints it, and `choose` takes the first
datapath of `LADDER` that implements all impairments of both directions exactly. An approximate datapath is chosen only if it
is requested by name; the choice then lists the approximations with their bounds.

*Exact* means that frames have the fates that `testbed.fates` decides, and are late by no more than the lateness of the
kernel's timer or of the relay. Random events have the same probability and are independent; they affect the same frames only
if "repeatable fates" is exact.

This module does not access the kernel: `capabilities` probes a machine's `Capabilities`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from functools import lru_cache
from types import MappingProxyType
from typing import Final, TypeAlias, get_args

from testbed.errors import UnsupportedError
from testbed.kernel.netem import MAX_JITTER
from testbed.kernel.shapers import LATENESS
from testbed.spec.layout import ConfiguredDatapath, Datapath, Impairment

LADDER: Final[tuple[Datapath, ...]] = get_args(Datapath)
"""The datapaths, in the order in which `choose` tries them."""


class Fit(Enum):
    """How well a datapath implements a feature."""

    EXACT = "exact"
    APPROXIMATE = "approximate"
    ABSENT = "absent"


@dataclass(frozen=True, slots=True)
class Feature:
    """A feature of an impaired direction.

    meaning: a phrase for users. applies: whether an impairment requires the feature; false for general properties, such as
    repeatable fates. is_random: whether it depends on random draws, and so needs a seed to be repeatable.
    """

    name: str
    meaning: str
    applies: Callable[[Impairment], bool]
    is_random: bool = False


@dataclass(frozen=True, slots=True)
class Entry:
    """How one datapath implements one feature. reason: why, a phrase for users. bound: bound of an approximation, in words.
    format_bound: formats the bound for an impairment, in numbers; empty if it has none."""

    fit: Fit
    reason: str
    bound: str = ""
    format_bound: Callable[[Impairment], str] | None = None


@dataclass(frozen=True, slots=True)
class Assessment:
    """How a datapath implements one feature of an impairment. bound: in words, and in numbers if it has any."""

    feature: str
    datapath: Datapath
    fit: Fit
    reason: str
    bound: str

    def __str__(self) -> str:
        return f"{self.feature} is {self.fit.value}: {self.reason}" + (f" ({self.bound})" if self.bound else "")


@dataclass(frozen=True, slots=True)
class Capabilities:
    """Capabilities of this machine for this user. reasons: name of a missing capability -> why it is missing.

    netem: the qdisc. netem_seed: netem takes a seed. netem_duplicate: a netem may duplicate while another interface has a
    netem. size_table: qdiscs take a table of frame sizes. tbf: the qdisc. bpf: the loss classifier. relay: packet sockets,
    and filters that divert frames to them.
    """

    netem: bool = False
    netem_seed: bool = False
    netem_duplicate: bool = False
    size_table: bool = False
    tbf: bool = False
    bpf: bool = False
    relay: bool = True
    reasons: Mapping[str, str] = field(default_factory=dict)

    def missing_reason(self, name: str) -> str:
        """Return why a capability is missing."""
        return self.reasons.get(name, "this machine does not have it")


@dataclass(frozen=True, slots=True)
class Choice:
    """A chosen datapath. notes: its approximations, or why the preferred ones were not chosen."""

    datapath: Datapath
    notes: tuple[str, ...] = ()


def _has_rate(impairment: Impairment) -> bool:
    return bool(impairment.rate or impairment.rate_trace)


def _never(_: Impairment) -> bool:
    return False


def _loss_model_count(i: Impairment) -> int:
    return bool(i.loss) + bool(i.gemodel) + bool(i.loss_pattern)


FEATURES: Final = (
    Feature("delay", "a constant delay", lambda i: bool(i.delay)),
    Feature("jitter", "deviations from a table (normal, pareto, a file's)",
            lambda i: bool(i.jitter) and i.distribution not in ("", "uniform"), is_random=True),
    Feature("uniform jitter", "deviations that are uniformly distributed",
            lambda i: bool(i.jitter) and i.distribution in ("", "uniform"), is_random=True),
    Feature("long jitter", "a jitter above 2.1 s", lambda i: i.jitter > MAX_JITTER),
    Feature("jitter trace", "deviations read from a file, one for each frame", lambda i: i.distribution == "trace"),
    Feature("order under jitter", "frames keep their order, whatever their jitter",
            lambda i: bool(i.jitter) or i.distribution == "trace"),
    Feature("jitter behind a rate", "jitter delays frames, and does not keep the wire busy",
            lambda i: bool(i.jitter) and _has_rate(i)),
    Feature("rate", "the rate, on average over a long time", lambda i: bool(i.rate)),
    Feature("rate in bits", "a rate that is not a whole number of bytes/s", lambda i: bool(i.rate % 8)),
    Feature("time on the wire", "every frame takes its transmission time, even the first and the smallest",
            lambda i: bool(i.rate)),
    Feature("rate trace", "a file of delivery opportunities as the rate", lambda i: bool(i.rate_trace)),
    Feature("default queue", "a queue of the bandwidth-delay product, in bytes",
            lambda i: _has_rate(i) and not i.queue and not i.queue_frames),
    Feature("queue in bytes", "a queue limit in bytes", lambda i: _has_rate(i) and bool(i.queue)),
    Feature("queue in frames", "a queue limit in frames", lambda i: _has_rate(i) and bool(i.queue_frames)),
    Feature("queue in frames before a delay", "frames in flight are not in the queue",
            lambda i: _has_rate(i) and bool(i.queue_frames) and bool(i.delay)),
    Feature("minimum frame", "a small frame counts a minimum of bytes against the rate",
            lambda i: _has_rate(i) and bool(i.minimum_frame)),
    Feature("overhead", "every frame counts additional bytes against the rate", lambda i: _has_rate(i) and bool(i.overhead)),
    Feature("cells", "frames fill whole cells", lambda i: _has_rate(i) and bool(i.cell_size)),
    Feature("loss", "every frame is lost with a probability", lambda i: bool(i.loss), is_random=True),
    Feature("gemodel", "losses in bursts (Gilbert-Elliott)", lambda i: bool(i.gemodel), is_random=True),
    Feature("loss pattern", "frames of certain numbers are lost", lambda i: bool(i.loss_pattern)),
    Feature("losses together", "more than one of loss, gemodel and pattern", lambda i: _loss_model_count(i) > 1),
    Feature("corrupt", "one bit of a frame is flipped with a probability", lambda i: bool(i.corrupt), is_random=True),
    Feature("corrupt bits", "several bits of a frame are flipped", lambda i: bool(i.corrupt) and i.corrupt_bits > 1),
    Feature("duplicate", "a frame arrives twice with a probability", lambda i: bool(i.duplicate), is_random=True),
    Feature("duplicate with loss", "a lost frame is not duplicated, and no copy is lost",
            lambda i: bool(i.duplicate) and _loss_model_count(i) > 0),
    Feature("duplicate with other fates", "a copy is as late and as corrupt as its original",
            lambda i: bool(i.duplicate) and bool(i.corrupt or i.reorder or i.jitter or i.distribution == "trace")),
    Feature("reorder", "a frame skips the delay with a probability", lambda i: bool(i.reorder), is_random=True),
    Feature("reorder behind a rate", "a frame that skips the delay still takes its time on the wire",
            lambda i: bool(i.reorder) and _has_rate(i)),
    Feature("rules", "fault rules on header fields", lambda i: bool(i.rules)),
    Feature("repeatable fates", "the n-th frame of a flow has the fate that the seed gives it, in every mode", _never),
    Feature("live change", "a changed impairment keeps the schedule of frames in flight", _never),
    Feature("counters by cause", "lost frames are counted separately from those that the queue dropped", _never),
)  # fmt: skip

NAMES: Final = tuple(feature.name for feature in FEATURES)
BY_NAME: Final = MappingProxyType({feature.name: feature for feature in FEATURES})


def _milliseconds(nanoseconds: float) -> str:
    return f"{nanoseconds / 1e6:g} ms"


def _exact(reason: str) -> Entry:
    return Entry(Fit.EXACT, reason)


def _absent(reason: str) -> Entry:
    return Entry(Fit.ABSENT, reason)


def _approximate(reason: str, bound: str, format_bound: Callable[[Impairment], str] | None = None) -> Entry:
    return Entry(Fit.APPROXIMATE, reason, bound, format_bound)


def _loss_with_duplicates(i: Impairment) -> str:
    if not i.loss:
        return ""
    copies = i.duplicate * (1 - i.loss)
    return (
        f"{i.loss * (1 - i.duplicate):.3%} of the frames do not arrive instead of {i.loss:.3%}, "
        f"{copies * (1 - i.loss):.3%} arrive twice instead of {copies:.3%}"
    )


def _bucket_size(i: Impairment) -> str:
    return f"{i.rate * LATENESS // (8 * 10**9):,} bytes and one frame"


_NETEM: Final[dict[str, Entry]] = {
    "delay": _exact("in nanoseconds; a frame leaves when the kernel's timer fires"),
    "jitter": _exact("drawn from the wire model's tables, which have netem's format"),
    "uniform jitter": _approximate(
        "drawn from a table, since the kernel's own uniform distribution cannot be restored after a table was set",
        "in steps of 1/8192 of the jitter",
        lambda i: f"steps of {i.jitter / 8192:.3g} ns",
    ),
    "long jitter": _absent("the kernel limits a jitter to 2.147 s"),
    "jitter trace": _absent("netem's jitter is always random"),
    "order under jitter": _approximate(
        "every frame is delayed independently",
        "frames closer together than twice the jitter may be reordered; with a rate, they keep their order",
        lambda i: "" if i.rate else f"frames within {_milliseconds(2 * i.jitter)}",
    ),
    "jitter behind a rate": _approximate(
        "a frame's time on the wire begins when the frame before it arrives",
        "a late frame holds up all frames behind it: under load, the delay is nearer to its maximum and varies less",
        lambda i: f"up to {_milliseconds(2 * i.jitter)} a frame",
    ),
    "rate": _exact("serialises frames; each frame's time is truncated to whole nanoseconds"),
    "rate in bits": _approximate(
        "its rate is in bytes/s",
        "differs by at most 4 bit/s; the lowest rate is 8 bit/s",
        lambda i: f"{4 / i.rate:.1%}",
    ),
    "time on the wire": _exact(
        "serialises frames; each frame's time is truncated to whole nanoseconds, and a VLAN tag is not counted"
    ),
    "rate trace": _absent("its rate is a number"),
    "default queue": _approximate(
        "its limit counts frames, including those in flight",
        "exact for frames that fill the MTU; of smaller frames the same number fits, and so fewer bytes",
    ),
    "queue in bytes": _approximate(
        "its limit counts frames, including those in flight",
        "exact for frames that fill the MTU; of smaller frames the same number fits, and so fewer bytes",
    ),
    "queue in frames": _exact("its limit counts frames; one more for the frame on the wire"),
    "queue in frames before a delay": _approximate(
        "its limit includes frames in flight",
        "exact for frames that fill the MTU; more of smaller frames are in flight, and so fewer may wait",
    ),
    "minimum frame": _exact("a size table has the bytes that a frame of each size counts"),
    "overhead": _exact("an option of netem"),
    "cells": _exact("an option of netem"),
    "loss": _exact("drawn for every frame, to 2^-32"),
    "gemodel": _exact("the same two states, drawn for every frame, to 2^-32"),
    "loss pattern": _absent("it loses frames at random only"),
    "losses together": _absent("it has one model of loss at a time"),
    "corrupt": _approximate(
        "one bit of the frame's linear part in memory",
        "for the kernel's TCP, that is the headers; for packet sockets and UDP, the frame up to a page",
    ),
    "corrupt bits": _absent("it flips one bit"),
    "duplicate": _exact("the copy passes through netem again, and takes its time on the wire, too"),
    "duplicate with loss": _approximate(
        "a frame that is both lost and duplicated arrives once, and a copy may be lost",
        "with loss l and duplicate d: l(1-d) instead of l do not arrive, d(1-l)^2 instead of d(1-l) arrive twice",
        _loss_with_duplicates,
    ),
    "duplicate with other fates": _approximate(
        "the copy passes through netem by itself", "corruption, jitter and reordering of the copy are drawn again"
    ),
    "reorder": _exact("the chosen frames leave at once"),
    "reorder behind a rate": _approximate(
        "the chosen frames also skip the queue and the wire",
        "the rate is exceeded by their share",
        lambda i: f"by {i.reorder:.3%}",
    ),
    "rules": _absent("it has none"),
    "repeatable fates": _absent("one seeded random stream for all flows, which restarts with each change"),
    "live change": _exact("changed in place; frames in flight keep their times"),
    "counters by cause": _absent("one counter for frames that were lost and frames that the queue dropped"),
}

_NO_DELAY: Final = _absent("it cannot delay frames")
_NO_CHANGE: Final = _absent("the classifier passes or loses frames, and changes none")
_LOSES: Final = _exact("a BPF program computes the fates of the wire model")
_SIZED: Final = _exact("a size table has the bytes that a frame of each size counts")
_TC_QUEUE: Final = _approximate(
    "a frame that waits for tokens is in the queue, and a full bucket passes frames that would have to wait",
    "longer or shorter by the bucket: the bytes of 1 ms at the rate, and one frame",
    _bucket_size,
)

_TC: Final[dict[str, Entry]] = {
    "delay": _NO_DELAY,
    "jitter": _NO_DELAY,
    "uniform jitter": _NO_DELAY,
    "long jitter": _NO_DELAY,
    "jitter trace": _NO_DELAY,
    "order under jitter": _NO_DELAY,
    "jitter behind a rate": _NO_DELAY,
    "rate": _approximate(
        "a token bucket, which passes a burst at once",
        "in a time t: the rate times t, plus the bucket: the bytes of 1 ms at the rate, and one frame",
        _bucket_size,
    ),
    "rate in bits": _NETEM["rate in bits"],
    "time on the wire": _approximate(
        "a frame that finds enough tokens takes no time",
        "early by the time that the bucket takes to fill: 1 ms and one frame's time",
    ),
    "rate trace": _absent("its rate is a number"),
    "default queue": _TC_QUEUE,
    "queue in bytes": _TC_QUEUE,
    "queue in frames": _TC_QUEUE,
    "queue in frames before a delay": _NO_DELAY,
    "minimum frame": _SIZED,
    "overhead": _SIZED,
    "cells": _SIZED,
    "loss": _LOSES,
    "gemodel": _LOSES,
    "loss pattern": _LOSES,
    "losses together": _LOSES,
    "corrupt": _NO_CHANGE,
    "corrupt bits": _NO_CHANGE,
    "duplicate": _NO_CHANGE,
    "duplicate with loss": _NO_CHANGE,
    "duplicate with other fates": _NO_CHANGE,
    "reorder": _NO_DELAY,
    "reorder behind a rate": _NO_DELAY,
    "rules": _absent("it distinguishes flows, not header fields"),
    "repeatable fates": _LOSES,
    "live change": _approximate(
        "queued frames leave at the new rate", "only the first frame of the queue keeps its time"
    ),
    "counters by cause": _exact("the program counts its losses, TBF the drops of its queue"),
}

TABLE: Final[Mapping[str, Mapping[Datapath, Entry]]] = MappingProxyType(
    {
        name: MappingProxyType[Datapath, Entry](
            {
                "direct": _absent("it has nothing that could impair frames"),
                "netem": _NETEM[name],
                "tc": _TC[name],
                "relay": _exact("the wire model itself; the lateness of frames is measured"),
            }
        )
        for name in NAMES
    }
)
"""Name of a feature -> datapath -> how the datapath implements the feature."""


@lru_cache(maxsize=2)
def _features_of(impairment: Impairment) -> tuple[Feature, ...]:
    """List the features that an impairment requires. Cached, since all datapaths are assessed for them."""
    return tuple([feature for feature in FEATURES if feature.applies(impairment)])


def assess(datapath: Datapath, impairment: Impairment) -> list[Assessment]:
    """List how a datapath implements each feature that an impairment requires, in the table's order."""
    assessments = []
    for feature in _features_of(impairment):
        entry = TABLE[feature.name][datapath]
        format_bound = entry.format_bound(impairment) if entry.format_bound is not None else ""
        bound = f"{entry.bound}: {format_bound}" if format_bound else entry.bound
        assessments.append(Assessment(feature.name, datapath, entry.fit, entry.reason, bound))
    return assessments


Refusal: TypeAlias = Callable[[Impairment], str]
"""Function that returns why no classifier can be made for an impairment's losses; empty if one can."""


def choose(
    forward: Impairment,
    backward: Impairment,
    capabilities: Capabilities,
    requested: ConfiguredDatapath = "auto",
    classifier_refusal: Refusal = lambda _: "",
) -> Choice:
    """Choose the datapath of a link with these impairments.

    classifier_refusal: of the BPF classifier, for limits that `TABLE` does not have, such as the length of a loss pattern.
    Raises UnsupportedError if the requested datapath cannot carry the link on this machine, or no datapath can.
    """
    if requested != "auto":
        obstacles, approximations = _assess_link(requested, forward, backward, capabilities, classifier_refusal)
        if obstacles:
            reason = "it carries no impairment" if requested == "direct" else _format_phrases(obstacles)
            raise UnsupportedError(f"the datapath {requested!r} cannot carry this: {reason}")
        return Choice(requested, tuple(approximations))
    rejected: list[str] = []
    for datapath in LADDER:
        obstacles, approximations = _assess_link(datapath, forward, backward, capabilities, classifier_refusal)
        if not obstacles and not approximations:
            return Choice(datapath, tuple(rejected))
        if datapath != "direct":  # it carries no impairment at all, which needs no note
            reason = (
                _format_phrases(obstacles)
                if obstacles
                else f"only approximately: {_format_phrases(_feature_names(approximations))}"
            )
            rejected.append(f"{datapath} not chosen: {reason}")
    raise UnsupportedError("no datapath can carry this here: " + "; ".join(rejected))


_ANY_OF: Final[Mapping[str, tuple[str, ...]]] = {"netem": ("netem",), "tc": ("bpf", "tbf"), "relay": ("relay",)}
"""Datapath -> capabilities, each of which suffices to carry some impairment."""


def unavailable_reason(datapath: str, capabilities: Capabilities) -> str:
    """Return why a datapath cannot carry any impairment on this machine; empty if it can carry some."""
    needs = _ANY_OF[datapath]
    if any(getattr(capabilities, need) for need in needs):
        return ""
    return "; ".join(capabilities.missing_reason(need) for need in needs)


def _assess_link(
    datapath: Datapath, forward: Impairment, backward: Impairment, capabilities: Capabilities, refusal: Refusal
) -> tuple[list[str], list[str]]:
    """Return the obstacles to a datapath (features that it or this machine lacks) and its approximations."""
    obstacles: list[str] = []
    approximations: list[str] = []
    for impairment in dict.fromkeys((forward, backward)):
        obstacles += _missing(datapath, impairment, capabilities, refusal)
        random_features = []
        for assessment in assess(datapath, impairment):
            if assessment.fit is Fit.ABSENT:
                obstacles.append(f"{assessment.feature}: {assessment.reason}")
            elif assessment.fit is Fit.APPROXIMATE:
                approximations.append(str(assessment))
            if BY_NAME[assessment.feature].is_random:
                random_features.append(assessment.feature)
        if datapath == "netem" and capabilities.netem and random_features and not capabilities.netem_seed:
            approximations.append(
                f"randomness ({', '.join(random_features)}) is approximate: it differs in every run: "
                f"{capabilities.missing_reason('netem_seed')}"
            )
    return _distinct(obstacles), _distinct(approximations)


def _missing(datapath: Datapath, impairment: Impairment, capabilities: Capabilities, refusal: Refusal) -> list[str]:
    """List the reasons why this machine lacks capabilities that a datapath needs for an impairment."""
    required: list[str] = []
    if datapath == "relay":
        required = ["relay"]
    elif datapath == "netem":
        required = ["netem"]
        if capabilities.netem:
            required += ["netem_duplicate"] if impairment.duplicate else []
            required += ["size_table"] if impairment.rate and impairment.minimum_frame else []
    elif datapath == "tc":
        required += ["bpf"] if _loss_model_count(impairment) else []
        required += ["tbf"] if impairment.rate else []
        shaped = impairment.minimum_frame or impairment.overhead or impairment.cell_size
        required += ["size_table"] if impairment.rate and shaped and capabilities.tbf else []
    missing = [capabilities.missing_reason(need) for need in required if not getattr(capabilities, need)]
    if datapath == "tc" and not missing and _loss_model_count(impairment) and (reason := refusal(impairment)):
        missing.append(reason)
    return missing


def _distinct(phrases: list[str]) -> list[str]:
    """Remove repeated phrases, since the directions of a link mostly have equal impairments."""
    return list(dict.fromkeys(phrases))


def _feature_names(phrases: list[str]) -> list[str]:
    """Return the features named by the phrases of approximations, without reasons."""
    return [phrase.partition(" is approximate")[0] for phrase in phrases]


def _format_phrases(phrases: list[str]) -> str:
    shown = "; ".join(phrases[:3])
    return shown if len(phrases) <= 3 else f"{shown}; and {len(phrases) - 3} more"
