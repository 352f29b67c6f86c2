"""Faults of a scenario as a user writes them, one class for each kind.

A fault has a begin and, unless it is instantaneous, an end; times are relative to the start of a run's programs::

    at = "2s"                                     from 2 s until the run's end
    at = "2s", for = "500ms"                      or: from = "2s", to = "2.5s"
    at = "1s", for = "100ms", every = "1s"        repeatedly, the last time before "to" or the run's end

Instead of the name of a node or link, ``@rack1`` selects all with the tag "rack1". With ``pick = 1`` the fault applies to
one target, drawn for each occurrence by the run's seed or ``seed``.

In Python, keys that are reserved words end with an underscore: ``Flap(on="n1", at="1s", for_="100ms")``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from testbed.errors import Problem
from testbed.spec import units
from testbed.spec.annotations import After, Before, Bounds, Listed, Schema
from testbed.spec.element import Element, Field, keys
from testbed.spec.elements import IMPAIRMENT_KEYS, Duration, Impairments, Rate
from testbed.spec.losses import format_gemodel
from testbed.spec.problems import MismatchError

MAX_TIMES = 100_000
"""Maximum number of occurrences of a fault."""

Lasting = Literal["may", "must", "never"]
"""Whether a fault has an end. One that may have an end, but has none, lasts until the run's end."""


def _to_tuple(value: object) -> object:
    return (value,) if isinstance(value, str) else tuple(value) if isinstance(value, list) else value


def _share(value: object) -> float:
    """Parse a share of a processor; more than 100% is a share of several."""
    expected = "a share of a processor above 0%, such as '50%', or '200%' for two"
    if isinstance(value, str) and value.strip().endswith("%"):
        try:
            share = float(value.strip().removesuffix("%")) / 100
        except ValueError:
            raise MismatchError(expected) from None
    elif isinstance(value, (int, float)) and not isinstance(value, bool):
        share = float(value)
    else:
        raise MismatchError(expected)
    if not 0 < share <= 1024:
        raise MismatchError(expected)
    return share


def _positive(value: int) -> int:
    if not value:
        raise MismatchError("more than 0")
    return value


Texts = Annotated[
    tuple[str, ...],
    Before(_to_tuple),
    Listed,
    Bounds(min_length=1),
    Schema({"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}, "minItems": 1}]}),
]
"""One text, or several."""
Period = Annotated[Duration, After(_positive)]
Share = Annotated[float, Before(_share), Schema({"type": ["string", "number"], "examples": ["50%"]})]
PositiveRate = Annotated[Rate, After(_positive)]


class Fault(Element):
    """Base of all kinds of faults. Times are nanoseconds since the programs began."""

    if TYPE_CHECKING:  # all faults have this constructor (`init=False`): values may be texts as in TOML

        def __init__(self, **keys: object) -> None: ...

    lasting: ClassVar[Lasting] = "may"

    kind: str = Field(description="Kind of the fault.")
    at: Duration | None = Field(None, description="Beginning of the fault.")
    from_: Duration | None = Field(None, key="from", description="Synonym of 'at'.")
    to: Duration | None = Field(None, description="End of the fault; with 'every', end of the repetitions.")
    for_: Period | None = Field(None, key="for", description="Duration of the fault.")
    every: Period | None = Field(None, description="Period of a repeated fault, from one beginning to the next.")

    @property
    def begin(self) -> int:
        """Beginning of the first occurrence."""
        return self.at if self.at is not None else self.from_ or 0

    @property
    def what(self) -> str:
        """Description for users."""
        raise NotImplementedError

    def problems(self) -> list[Problem]:
        """Return contradictions between the keys; a problem's path is its key."""
        problems = []
        if self.at is None and self.from_ is None:
            problems.append(Problem("", "", "the key 'at' or 'from': the beginning of the fault"))
        if self.at is not None and self.from_ is not None:
            problems.append(Problem("from", "'from' together with 'at'", "one of them"))
        if self.to is not None and self.to <= self.begin:
            problems.append(
                Problem("to", units.format_duration(self.to), f"a time after {units.format_duration(self.begin)}")
            )
        if self.lasting == "never":
            if self.for_ is not None:
                problems.append(
                    Problem("for", units.format_duration(self.for_), f"no such key: {self.kind} does not last")
                )
            if self.to is not None and self.every is None:
                problems.append(
                    Problem("to", units.format_duration(self.to), f"no such key: {self.kind} does not last")
                )
        elif self.every is None:
            if self.to is not None and self.for_ is not None:
                problems.append(Problem("for", "'for' together with 'to'", "one of them"))
            if self.lasting == "must" and self.to is None and self.for_ is None:
                problems.append(Problem("", "", f"the key 'for' or 'to': {self.kind} has an end"))
        elif self.for_ is None:
            problems.append(Problem("", "", "the key 'for' as well as 'every': the duration of each occurrence"))
        elif self.for_ > self.every:
            problems.append(Problem("for", units.format_duration(self.for_), "not longer than 'every'"))
        return problems

    def times(self, horizon: int) -> list[tuple[int, int | None]]:
        """Return the beginning and end of each occurrence, nanoseconds; None: the run's end. A repeated fault without 'to'
        is repeated until the horizon. Raises MismatchError for more than MAX_TIMES occurrences."""
        if self.every is None:
            end = self.to if self.to is not None else self.begin + self.for_ if self.for_ is not None else None
            return [(self.begin, end)]
        last = self.to if self.to is not None else max(horizon, self.begin + 1)
        begins = range(self.begin, last, self.every)
        if len(begins) > MAX_TIMES:
            raise MismatchError(
                f"a longer 'every' or an earlier 'to': {len(begins):,} occurrences, and {MAX_TIMES:,} are allowed"
            )
        return [(begin, begin + self.for_ if self.for_ is not None else None) for begin in begins]


class _On(Fault, init=False):
    """Base of faults on named targets."""

    on: Texts
    pick: Annotated[int, Bounds(ge=1)] | None = Field(
        None, description="Number of targets that are drawn from 'on' for each occurrence."
    )
    seed: Annotated[int, Bounds(ge=0, le=2**64 - 1)] | None = Field(
        None, description="Seed of the draws; default: the run's."
    )

    def problems(self) -> list[Problem]:
        problems = super().problems()
        if self.seed is not None and self.pick is None:
            problems.append(Problem("seed", str(self.seed), "the key 'pick' as well: nothing is drawn without it"))
        return problems

    def where(self, direction: str = "") -> str:
        """Describe the targets for users."""
        picked = f"{self.pick} of " if self.pick is not None else ""
        return f"{picked}{', '.join(self.on)}" + (f" ({direction})" if direction else "")


class OnLinks(_On, init=False):
    on: Texts = Field(
        description="Links: 'n1--s1', a node or switch (all its links), one end ('n1:eth0'), a tag ('@rack1'), or 'all'."
    )


class OnNodes(_On, init=False):
    on: Texts = Field(description="Nodes, tags ('@rack1'), or 'all'.")

    @property
    def what(self) -> str:
        return f"{self.kind} on {self.where()}"


class Impair(OnLinks, Impairments, init=False):
    """Links are impaired, by any of the impairments of a description."""

    kind: Literal["impair"] = "impair"
    direction: str = Field("", description="'out' of the node or 'in', 'a-b' by the ends' names; default: both.")

    @property
    def what(self) -> str:
        texts = [f"{key} {_text(key, value)}" for key, value in self.explicit().items() if key != "rules"]
        texts += [f"rule {text!r}" for text in self.rules or ()]
        return f"{', '.join(texts)} on {self.where(self.direction)}"

    def problems(self) -> list[Problem]:
        if not self.explicit():
            return [
                *super().problems(),
                Problem("", "", f"an impairment: one of the keys {', '.join(IMPAIRMENT_KEYS)}"),
            ]
        return super().problems()


class Rule(OnLinks, init=False):
    """Fault rules decide the fates of frames: 'drop emp.type == 3 and nth(3)'. They count frames from the beginning of the
    fault."""

    kind: Literal["rule"] = "rule"
    on: Texts = Field(("all",), description="Links; default: all.")
    direction: str = Field("", description="As for impair.")
    rules: Texts = Field(description="One or several rules; the first that matches a frame decides its fate.")

    @property
    def what(self) -> str:
        return f"{', '.join(f'rule {text!r}' for text in self.rules)} on {self.where(self.direction)}"


class Down(OnLinks, init=False):
    """Cables are unplugged."""

    kind: Literal["down"] = "down"

    @property
    def what(self) -> str:
        return f"down: {self.where()}"


class Flap(Down, init=False):
    """Cables are unplugged, and plugged in again."""

    lasting: ClassVar[Lasting] = "must"

    kind: Literal["flap"] = "flap"  # type: ignore[assignment]  # another kind, with an end


class Partition(Fault, init=False):
    """No frame passes between groups of nodes."""

    kind: Literal["partition"] = "partition"
    groups: Annotated[tuple[Texts, ...], Listed] | None = Field(
        None, description="Groups of nodes that reach each other; a node in no group reaches all nodes."
    )
    shape: Literal["halves", "ring-majority", "isolated"] | None = Field(
        None,
        description="Instead of groups: two halves; a ring in which each node hears a different majority; one node "
        "and the rest.",
    )
    node: str | None = Field(
        None, description="The isolated node, or a tag, from whose nodes it is drawn; default: drawn from all nodes."
    )
    seed: Annotated[int, Bounds(ge=0, le=2**64 - 1)] | None = Field(
        None, description="Seed by which halves, ring and isolated node are drawn; default: the order of the nodes."
    )
    one_way: bool = Field(False, description="Drop only the frames that the first group (the isolated node) sends.")

    @property
    def what(self) -> str:
        if self.groups is not None:
            form = " / ".join(",".join(group) for group in self.groups)
        else:
            form = f"{self.shape}" + (f" of {self.node}" if self.node else "")
        return f"partition {form}" + (", one way" if self.one_way else "")

    def problems(self) -> list[Problem]:
        problems = super().problems()
        if (self.groups is None) == (self.shape is None):
            problems.append(Problem("", "both" if self.groups else "", "either 'groups' or 'shape'"))
        if self.groups is not None:
            if len(self.groups) < 2:
                problems.append(Problem("groups", f"{len(self.groups)}", "two groups of nodes or more"))
            seen: set[str] = set()
            for name in (name for group in self.groups for name in group):
                if name in seen:
                    problems.append(Problem("groups", f"{name} twice", "every node in one group"))
                seen.add(name)
        if self.node is not None and self.shape != "isolated":
            problems.append(Problem("node", repr(self.node), "no such key unless the shape is 'isolated'"))
        if self.one_way and self.shape == "ring-majority":
            problems.append(Problem("one_way", "true", "another shape: a ring has no first group"))
        return problems


class Crash(OnNodes, init=False):
    """A node's process is killed: its program ends, and its NIC loses its state. If the fault ends, the process is started
    again then: its NIC has the next incarnation, and its program starts from the beginning."""

    kind: Literal["crash"] = "crash"


class Restart(OnNodes, init=False):
    """A node's process is killed and started again, at once or after a time."""

    kind: Literal["restart"] = "restart"

    def times(self, horizon: int) -> list[tuple[int, int | None]]:
        return [(begin, begin if end is None else end) for begin, end in super().times(horizon)]

    def problems(self) -> list[Problem]:
        if self.every is not None and self.for_ is None:
            return self.model_copy(update={"for_": 1}).problems()
        return super().problems()


class Reset(OnNodes, init=False):
    """A node's NIC restarts with the next incarnation. Its program restarts, too, since it uses the former incarnation."""

    lasting: ClassVar[Lasting] = "never"

    kind: Literal["reset"] = "reset"

    @property
    def what(self) -> str:
        return f"NIC reset on {self.where()}"

    def times(self, horizon: int) -> list[tuple[int, int | None]]:
        return [(begin, begin) for begin, _ in super().times(horizon)]


class Pause(OnNodes, init=False):
    """A node is paused, with its NIC: frames for it wait."""

    lasting: ClassVar[Lasting] = "must"

    kind: Literal["pause"] = "pause"


class Slow(OnNodes, init=False):
    """The processor of a node's NIC becomes slower by a factor."""

    kind: Literal["slow"] = "slow"
    factor: Annotated[float, Bounds(gt=1, le=1e6)] = Field(description="Factor by which its processing times increase.")

    @property
    def what(self) -> str:
        return f"NIC's processor {self.factor:g} times as slow on {self.where()}"


class Cpu(OnNodes, init=False):
    """Another program uses a node's processor."""

    kind: Literal["cpu"] = "cpu"
    share: Share = Field(description="Share of a processor: '50%'.")

    @property
    def what(self) -> str:
        return f"load of {self.share:.0%} of a processor on {self.where()}"


class Traffic(Fault, init=False):
    """Nodes send datagrams to another at a constant rate, without flow control."""

    kind: Literal["traffic"] = "traffic"
    senders: Texts = Field(description="Nodes.")
    receiver: str = Field(description="A node.")
    rate: PositiveRate = Field(description="Rate of each sender, including headers.")

    @property
    def what(self) -> str:
        return f"load of {units.format_rate(self.rate)} from {', '.join(self.senders)} to {self.receiver}"


class Incast(Fault, init=False):
    """All other nodes send to one."""

    kind: Literal["incast"] = "incast"
    receiver: str = Field(description="A node.")
    rate: PositiveRate = Field(description="Rate of each sender, including headers.")

    @property
    def what(self) -> str:
        return f"incast of {units.format_rate(self.rate)} from each to {self.receiver}"


class Churn(OnNodes, init=False):
    """Nodes crash and restart at random times; 'mean' is the mean time between two crashes of any of them."""

    kind: Literal["churn"] = "churn"
    on: Texts = Field(("all",), description="Nodes from which one is drawn for each crash.")
    mean: Period = Field(description="Mean time between two crashes.")
    away: Duration = Field(0, description="Time until a crashed node restarts.")

    def problems(self) -> list[Problem]:
        # Churn draws its times, so that it takes a seed without 'pick'.
        problems = [problem for problem in super().problems() if problem.path != "seed"]
        if self.pick is not None:
            problems.append(Problem("pick", str(self.pick), "no such key: churn draws one node each time"))
        if self.every is not None:
            problems.append(Problem("every", units.format_duration(self.every), "no such key: churn has its 'mean'"))
        return problems


KINDS: dict[str, type[Fault]] = {
    str(model.model_fields["kind"].default): model
    for model in (
        Impair, Rule, Down, Flap, Partition, Crash, Restart, Reset, Pause, Slow, Cpu, Traffic, Incast, Churn,
    )
}  # fmt: skip

KEYS: dict[str, tuple[str, ...]] = {kind: keys(model) for kind, model in KINDS.items()}


def _text(key: str, value: object) -> str:
    if isinstance(value, tuple):
        return format_gemodel(value)
    if key in ("delay", "jitter") and isinstance(value, int):
        return units.format_duration(value)
    if key == "rate" and isinstance(value, int):
        return units.format_limit(value)
    return units.format_probability(value) if isinstance(value, float) else str(value)
