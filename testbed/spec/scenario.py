"""Scenarios: a timeline of faults during a run, and random faults, from TOML or Python::

    [[fault]]
    kind = "impair"
    on = "n1"
    from = "2s"
    to = "4s"
    loss = "5%"

    [random]
    kinds = ["impair", "flap", "pause"]
    rate = 2.0
    seed = 7

Parsing is strict, as for descriptions: all problems are reported together, with the nearest valid names. Names of nodes and
links are checked when the cluster is known.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tomli_w

from testbed.errors import DescriptionError, Problem, UnsupportedError
from testbed.spec import units
from testbed.spec.annotations import Before, Bounds, Listed
from testbed.spec.dilation import slow_rate, slow_rule
from testbed.spec.element import Element, Field, keys
from testbed.spec.element_schema import element_schema, variant_schema
from testbed.spec.elements import Duration, Name
from testbed.spec.fault_models import KEYS, KINDS, Fault, Impair, Incast, Period, Rule, Texts, Traffic
from testbed.spec.loader import read_text, table_of
from testbed.spec.parser import read
from testbed.spec.problems import MismatchError, below, format_value, item, join_alternatives, nearest

RandomKind = Literal["impair", "down", "flap", "partition", "crash", "restart", "reset", "pause", "cpu", "incast"]
"""Kinds of faults that can be drawn."""


def _number(value: object) -> object:
    """Convert a text such as "2.0" to a number; return other values unchanged. Raises MismatchError."""
    if not isinstance(value, str):
        return value
    try:
        return float(value)
    except ValueError:
        raise MismatchError("a number") from None


class RandomFaults(Element):
    """Faults with random times, targets and strengths, determined by the seed."""

    if TYPE_CHECKING:

        def __init__(self, **keys: object) -> None: ...

    kinds: Annotated[tuple[RandomKind, ...], Listed] = Field(description="Kinds of faults that are drawn.")
    rate: Annotated[float, Before(_number), Bounds(gt=0, le=1e6)] = Field(
        description="Mean number of faults that begin per second."
    )
    seed: Annotated[int, Bounds(ge=0, le=2**64 - 1)] | None = Field(
        None, description="Seed of the draws; default: the run's."
    )
    from_: Duration = Field(0, key="from", description="Beginning of the faults.")
    to: Duration | None = Field(None, description="End of the faults; default: the run's time limit.")
    shortest: Period = Field(10_000_000, description="Shortest duration of a fault; default: 10 ms.")
    longest: Period = Field(1_000_000_000, description="Longest duration of a fault; default: 1 s.")
    on: Texts = Field(
        ("all",),
        description="Nodes and links from which targets are drawn. A partition separates these nodes, or isolates one of "
        "them; all other nodes send to the receiver of an incast.",
    )

    def problems(self) -> list[Problem]:
        """Return contradictions between the keys; a problem's path is its key."""
        problems = []
        if not self.kinds:
            problems.append(Problem("kinds", "none", "one kind or more"))
        if self.to is not None and self.to <= self.from_:
            begin = units.format_duration(self.from_)
            problems.append(Problem("to", units.format_duration(self.to), f"a time after {begin}"))
        if self.longest < self.shortest:
            minimum = units.format_duration(self.shortest)
            problems.append(
                Problem("longest", units.format_duration(self.longest), f"at least {minimum}, the shortest")
            )
        return problems


class Scenario(Element):
    """A scenario. faults: in the order of the file; faults that begin at the same time keep this order."""

    if TYPE_CHECKING:

        def __init__(
            self, *, name: str = "scenario", faults: Sequence[Fault] = (), random: RandomFaults | None = None
        ) -> None: ...

    name: Name = Field("scenario", description="Name of the scenario in results; default: the file's name.")
    faults: Annotated[tuple[Fault, ...], Listed] = Field((), key="fault")
    random: RandomFaults | None = None

    def _check(self) -> None:
        problems = _contradictions(list(enumerate(self.faults)), self.random)
        if problems:
            raise DescriptionError(self.name, problems)

    def to_toml(self) -> str:
        """Format as TOML with units, the inverse of `from_toml`."""
        table: dict[str, object] = {"name": self.name}
        if self.random is not None:
            table["random"] = _table(self.random)
        return tomli_w.dumps({**table, "fault": [_table(fault) for fault in self.faults]})

    @classmethod
    def load(cls, path: str | Path) -> Scenario:
        """Load a scenario from a file. Raises DescriptionError, NotFoundError, PermissionDeniedError."""
        return load(path)

    @classmethod
    def from_toml(cls, text: str, source: str = "TOML", base: Path | None = None) -> Scenario:
        """Parse a scenario in TOML. source: name for error messages. base: directory of relative paths; None: the working
        directory. Raises DescriptionError."""
        return _parse(table_of(text, source), source, "scenario", base or Path.cwd())


def load(path: str | Path) -> Scenario:
    """Load a scenario from a file; see `Scenario.load`."""
    file = Path(path)
    stem = file.name.removesuffix(".toml")
    return _parse(table_of(read_text(file), str(path)), str(path), stem, file.absolute().parent)


def _parse(data: Mapping[str, object], source: str, name: str, base: Path) -> Scenario:
    problems: list[Problem] = []
    known = ("name", "fault", "random")
    problems += [
        Problem(
            "", f"unknown key {format_value(key)}", f"one of the keys {join_alternatives(known)}", nearest(key, known)
        )
        for key in data
        if key not in known
    ]
    if "fault" not in data and "random" not in data and not problems:
        problems.append(Problem("", "nothing", "a fault ([[fault]]) or faults at random ([random])"))
    faults: list[tuple[int, Fault]] = []
    raw = data.get("fault", ())
    if not isinstance(raw, (list, tuple)):
        actual = "[fault]" if isinstance(raw, Mapping) else format_value(raw)
        problems.append(Problem("fault", actual, "tables that begin with [[fault]]"))
        raw = ()
    for index, table in enumerate(raw):
        fault, fault_problems = _read_fault(table, item("fault", index))
        problems += fault_problems
        if fault is not None and not fault_problems:
            faults.append((index, _with_absolute_paths(fault, base)))
    random_faults = None
    if "random" in data:
        random_faults, random_problems = read(RandomFaults, data["random"], "random", keys(RandomFaults))
        problems += random_problems
        random_faults = None if random_problems else random_faults
    heading, name_problems = read(Scenario, {"name": data.get("name", name)}, "", known)
    if "name" in data:
        problems += name_problems
    problems += _contradictions(faults, random_faults)
    if problems:
        raise DescriptionError(source, problems)
    scenario_name = heading.name if heading is not None and not name_problems else "scenario"
    return Scenario(name=scenario_name, faults=tuple(fault for _, fault in faults), random=random_faults)


def _read_fault(table: object, path: str) -> tuple[Fault | None, list[Problem]]:
    if not isinstance(table, Mapping):
        return None, [Problem(path, format_value(table), "a table")]
    kind = table.get("kind")
    if kind is None:
        return None, [Problem(path, "", f"the key 'kind': {join_alternatives(KINDS)}")]
    model = KINDS.get(kind) if isinstance(kind, str) else None
    if model is None:
        return None, [Problem(below(path, "kind"), format_value(kind), join_alternatives(KINDS), nearest(kind, KINDS))]
    return read(model, table, path, KEYS[str(kind)])


def _contradictions(faults: Sequence[tuple[int, Fault]], random_faults: RandomFaults | None) -> list[Problem]:
    problems = [
        Problem(below(item("fault", index), problem.path), problem.found, problem.expected, problem.suggestion)
        for index, fault in faults
        for problem in fault.problems()
    ]
    if random_faults is not None:
        problems += [
            Problem(below("random", problem.path), problem.found, problem.expected)
            for problem in random_faults.problems()
        ]
    return problems


def _with_absolute_paths(fault: Fault, base: Path) -> Fault:
    """Return the fault with absolute paths of its files."""
    if not isinstance(fault, Impair):
        return fault
    files = {key: str(base / path) for key in ("jitter_file", "rate_trace") if (path := getattr(fault, key))}
    return fault.model_copy(update=files) if files else fault


_DURATIONS = (
    "at", "from", "to", "for", "every", "mean", "away", "shortest", "longest", "delay", "jitter",
)  # fmt: skip


def _table(element: Element) -> dict[str, object]:
    """Return the values other than defaults, and the kind of a fault."""
    values = element.model_dump(by_alias=True, exclude_defaults=True)
    table = {"kind": element.kind, **values} if isinstance(element, Fault) else values
    for key in table.keys() & set(_DURATIONS):
        table[key] = units.format_duration(table[key])
    if isinstance(element, Fault) and "rate" in table:
        table["rate"] = units.format_limit(table["rate"])
    return table


def json_schema() -> Mapping[str, Any]:
    """Return the JSON Schema (draft 2020-12) of a scenario in TOML, for editors."""
    definitions: dict[str, Any] = {}
    variants = [variant_schema(model, definitions, "kind", kind) for kind, model in KINDS.items()]
    random_faults = element_schema(RandomFaults, definitions)
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Scenario",
        "description": "Faults during a run, and their times.",
        "type": "object",
        "additionalProperties": False,
        "properties": {
            "name": {"type": "string"},
            "fault": {"type": "array", "items": {"oneOf": variants}},
            "random": random_faults,
        },
        "anyOf": [{"required": ["fault"]}, {"required": ["random"]}],
        "$defs": dict(sorted(definitions.items())),
    }


def slow_fault(fault: Fault, factor: int) -> Fault:
    """Slow the impairments, rules and rates of a fault by a factor of 1 or more; its times are not changed. Raises
    UnsupportedError for a jitter or a rate in a file, or a rate that would be below 1 bit/s."""
    if isinstance(fault, Impair):
        if fault.jitter_file is not None or fault.rate_trace is not None:
            raise UnsupportedError("a jitter or a rate that is in a file cannot be slowed")
        impairments = fault.explicit()
        update: dict[str, object] = {
            key: impairments[key] * factor for key in ("delay", "jitter") if key in impairments
        }
        if impairments.get("rate"):
            update["rate"] = slow_rate(fault.kind, impairments["rate"], factor)
        if "rules" in impairments:
            update["rules"] = _slow_rules(impairments["rules"], factor)
        return fault.model_copy(update=update)
    if isinstance(fault, Rule):
        return fault.model_copy(update={"rules": _slow_rules(fault.rules, factor)})
    if isinstance(fault, Traffic | Incast):
        return fault.model_copy(update={"rate": slow_rate(fault.kind, fault.rate, factor)})
    return fault


def _slow_rules(rules: tuple[str, ...], factor: int) -> tuple[str, ...]:
    return tuple(slow_rule(rule, factor) for rule in rules)
