"""Studies from TOML: the parameters that all runs share, and those that vary::

    [run]
    cluster = "star-4"
    workload = "random"
    mode = "sim"
    settings = { messages = 200 }

    [grid]                                # every combination
    protocol = ["emp", "via"]
    "link.loss" = ["0%", "1%", "5%"]
    seed = [1, 2, 3]

    [latin]                               # or a Latin hypercube, for each combination of the grid
    points = 20
    seed = 7
    ranges = { "link.delay" = { from = "1us", to = "1ms", scale = "log" } }

    [[point]]                             # or single points
    protocol = "am2"
    cores = 4                             # processors of this point in namespaces

    [resources]                           # processors of a run in namespaces; default: exclusive = true, all of them
    cores = 2

Parsing is strict, as for descriptions: all problems are reported together, with the nearest valid names. Parameters are
those of `testbed run`: ``cluster``, ``workload``, ``protocol``, ``mode``, ``seed``, ...; ``settings.KEY`` for the workload,
``firmware.KEY`` for the protocol's NICs, and ``link.KEY`` for the default impairments of all links. ``cores`` and
``exclusive`` of a point replace those of [resources].

A study may instead be a swarm: random small clusters with faults, each of which must deliver every message exactly once::

    [swarm]
    protocols = ["emp", "via"]
    cases = 1_000_000                     # number of cases of each protocol
    seed = 0                              # seed of the first case
    cases_per_point = 500
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from testbed.errors import DescriptionError, Problem
from testbed.packages import offered_protocols
from testbed.spec.elements import Impairments
from testbed.spec.loader import read_text, table_of
from testbed.spec.problems import below, format_value, item, join_alternatives, nearest
from testbed.studies.designs import MAX_POINTS, Parameters, Range, Value, grid, latin_hypercube, read_range

OPTIONS: Final[Mapping[str, tuple[type, ...]]] = {
    "cluster": (str,), "workload": (str,), "protocol": (str,), "codec": (str,), "mode": (str,), "seed": (int,),
    "repeat": (int,), "timeout": (int, float), "patience": (int, float), "check": (bool,), "scenario": (str,),
    "profile": (str,), "ranks_per_node": (int,), "nics": (str,), "queues": (int,), "steering": (str,), "bind": (bool,),
    "dilate": (int,),
}  # fmt: skip
"""Parameters without a dot, and the types of their values."""

CORES, EXCLUSIVE = "cores", "exclusive"
RESOURCES: Final[Mapping[str, tuple[type, ...]]] = {CORES: (int,), EXCLUSIVE: (bool,)}
"""Parameters of a point that reserve processors, and the types of their values."""

SWARM, FIRST_SEED, CASES = "swarm", "first_seed", "cases"
"""Parameters of a point that runs cases of a swarm: the protocol, the seed of the first case, the number of cases."""

GROUPS: Final = ("settings", "firmware", "link")
"""Groups of parameters with the names ``GROUP.KEY``."""

_REQUIRED: Final = ("cluster", "workload")
_TABLES: Final = ("name", "run", "grid", "latin", "point", "resources", "swarm")
_SWARM_NUMBERS: Final = {"cases": (1, None), "seed": (0, 0), "cases_per_point": (1, 500)}
"""Keys of the table [swarm] with numbers: minimum, and default; None: the key is required."""
_CORE_COUNT: Final = "a number of processors, 1 or more"
_EITHER: Final = "either cores, or exclusive = true"
_ALTERNATIVES: Final[Mapping[type, tuple[str, ...]]] = {
    str: ("a text",), int: ("an integer",), float: ("a number",), bool: ("true", "false"),
}  # fmt: skip
"""Values of a type, for error messages."""


@dataclass(frozen=True, slots=True)
class Study:
    """A study. points: the parameters of each run, in the order of the file. varied: names of the parameters that differ
    between points. base: directory of relative files. cores: processors of a run in namespaces, unless its point sets them;
    None: the whole machine."""

    name: str
    points: tuple[Parameters, ...]
    varied: tuple[str, ...]
    base: Path
    cores: int | None = None

    def cores_of(self, number: int) -> int | None:
        """Return the processors that a point needs if it runs in namespaces; None: the whole machine."""
        point = self.points[number]
        if point.get(EXCLUSIVE, False):
            return None
        cores = point.get(CORES, self.cores)
        assert cores is None or isinstance(cores, int)
        return cores


def load(path: str | Path) -> Study:
    """Load a study from a file. Raises DescriptionError, NotFoundError, PermissionDeniedError."""
    file = Path(path)
    return parse(read_text(file), str(path), file.name.removesuffix(".toml"), file.absolute().parent)


def parse(text: str, source: str, name: str = "study", base: Path | None = None) -> Study:
    """Parse a study in TOML. source: name for error messages. name: default of the study's name. base: directory of relative
    files; None: the working directory. Raises DescriptionError."""
    reader = _Reader(table_of(text, source))
    study = reader.study(name, base or Path.cwd())
    if reader.problems:
        raise DescriptionError(source, reader.problems)
    assert study is not None
    return study


def _is_core_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def _found(value: object) -> str:
    """Format the value of a required key; empty if the key is missing."""
    return "" if value is None else format_value(value)


class _Reader:
    """Reader of the table of a study. problems: the problems found so far."""

    def __init__(self, table: Mapping[str, object]) -> None:
        self.problems: list[Problem] = []
        self._table = table

    def study(self, name: str, base: Path) -> Study | None:
        """Return the study; None if it has problems."""
        for key in self._table:
            if key not in _TABLES:
                self._unknown("", key, _TABLES)
        if not isinstance(title := self._table.get("name", name), str) or not title:
            self.problems.append(Problem("name", format_value(title), "a text that is not empty"))
        if "swarm" in self._table:
            return self._swarm(str(title), base)
        common = self._parameters("run", self._table.get("run", {}))
        axes = self._axes()
        ranges, count, seed = self._latin()
        listed_points = self._list()
        cores = self._cores()
        self._check_names(common, axes, ranges, listed_points)
        self._check_size(math.prod(map(len, axes.values())) * count * max(1, len(listed_points)))
        if self.problems:
            return None
        points = []
        for combination in grid(axes):
            sampled = latin_hypercube(ranges, count, seed) if ranges else iter([{}])
            points += [
                {**common, **combination, **sample, **point} for sample in sampled for point in (listed_points or [{}])
            ]
        varied = (*axes, *ranges, *dict.fromkeys(key for point in listed_points for key in point))
        self._check_resources(points, cores)
        return Study(str(title), tuple(points), tuple(dict.fromkeys(varied)), base, cores)

    def _swarm(self, title: str, base: Path) -> Study | None:
        """Return the study of a swarm; None if it has problems."""
        for key in _TABLES[1:-1]:
            if key in self._table:
                self.problems.append(Problem(key, "together with [swarm]", "either a swarm or runs"))
        table = self._table["swarm"]
        if not isinstance(table, Mapping):
            self.problems.append(Problem("swarm", format_value(table), "a table"))
            return None
        for key in table:
            if key not in ("protocols", *_SWARM_NUMBERS):
                self._unknown("swarm", key, ("protocols", *_SWARM_NUMBERS))
        protocols = table.get("protocols")
        known = [protocol.name for protocol in offered_protocols() if protocol.ethertype]
        if not isinstance(protocols, list) or not protocols or len(set(map(repr, protocols))) < len(protocols):
            self.problems.append(
                Problem("swarm.protocols", _found(protocols), "a list of one protocol or more, all different")
            )
            protocols = []
        for number, name in enumerate(protocols):
            if name not in known:
                self.problems.append(
                    Problem(
                        item("swarm.protocols", number),
                        format_value(name),
                        f"one of {join_alternatives(known)}",
                        nearest(name, known),
                    )
                )
        cases, seed, per_point = (self._swarm_number(table, key) for key in _SWARM_NUMBERS)
        self._check_size(len(protocols) * -(-cases // per_point))
        if self.problems:
            return None
        points = [
            {SWARM: name, FIRST_SEED: first, CASES: min(per_point, seed + cases - first)}
            for first in range(seed, seed + cases, per_point)
            for name in protocols
        ]
        return Study(title, tuple(points), (SWARM, FIRST_SEED), base)

    def _swarm_number(self, table: Mapping[str, object], key: str) -> int:
        minimum, default = _SWARM_NUMBERS[key]
        value = table.get(key, default)
        if isinstance(value, bool) or not isinstance(value, int) or value < minimum:
            self.problems.append(Problem(f"swarm.{key}", _found(value), f"an integer, {minimum} or more"))
            return max(minimum, 1)
        return value

    def _parameters(self, path: str, table: object) -> dict[str, Value]:
        """Read a table of parameters with one value each; return the valid ones."""
        parameters: dict[str, Value] = {}
        for name, path_of_value, value in self._flatten(path, table):
            if self._is_valid(name, path_of_value, value):
                assert isinstance(value, str | int | float)
                parameters[name] = value
        return parameters

    def _axes(self) -> dict[str, Sequence[Value]]:
        """Read the grid: the values of each parameter."""
        axes: dict[str, Sequence[Value]] = {}
        for name, path_of_value, values in self._flatten("grid", self._table.get("grid", {})):
            if not isinstance(values, list) or not values:
                self.problems.append(Problem(path_of_value, format_value(values), "a list of at least one value"))
                continue
            valid = [self._is_valid(name, item(path_of_value, number), value) for number, value in enumerate(values)]
            if all(valid):
                if len(set(map(repr, values))) < len(values):
                    self.problems.append(Problem(path_of_value, format_value(values), "values that all differ"))
                axes[name] = values
        return axes

    def _latin(self) -> tuple[dict[str, Range], int, int]:
        """Read the hypercube: its ranges, number of points, and seed."""
        table = self._table.get("latin")
        if table is None:
            return {}, 1, 0
        if not isinstance(table, Mapping):
            self.problems.append(Problem("latin", format_value(table), "a table"))
            return {}, 1, 0
        for key in table:
            if key not in ("points", "seed", "ranges"):
                self._unknown("latin", key, ("points", "seed", "ranges"))
        count, seed = table.get("points"), table.get("seed", 0)
        if isinstance(count, bool) or not isinstance(count, int) or not 1 <= count <= MAX_POINTS:
            self.problems.append(Problem("latin.points", _found(count), f"a number of points, 1 to {MAX_POINTS:,}"))
            count = 1
        if isinstance(seed, bool) or not isinstance(seed, int) or seed < 0:
            self.problems.append(Problem("latin.seed", format_value(seed), "an integer, 0 or more"))
            seed = 0
        ranges: dict[str, Range] = {}
        for name, path_of_value, value in self._flatten("latin.ranges", table.get("ranges", {}), depth=1):
            range_ = read_range(value, path_of_value)
            if isinstance(range_, Range):
                if self._is_valid(name, path_of_value, range_.at(0)):
                    ranges[name] = range_
            else:
                self.problems += range_
        if not ranges and not self.problems:
            self.problems.append(Problem("latin.ranges", "none", "the range of one parameter or more"))
        return ranges, count, seed

    def _list(self) -> list[dict[str, Value]]:
        """Read the listed points."""
        raw = self._table.get("point", [])
        if not isinstance(raw, list):
            self.problems.append(Problem("point", format_value(raw), "tables [[point]]"))
            return []
        return [self._parameters(item("point", number), table) for number, table in enumerate(raw)]

    def _cores(self) -> int | None:
        """Read the number of processors of a run in namespaces; None: the whole machine."""
        table = self._table.get("resources", {})
        if not isinstance(table, Mapping):
            self.problems.append(Problem("resources", format_value(table), "a table"))
            return None
        for key in table:
            if key not in RESOURCES:
                self._unknown("resources", key, tuple(RESOURCES))
        cores = table.get(CORES)
        if cores is not None and not _is_core_count(cores):
            self.problems.append(Problem("resources.cores", format_value(cores), _CORE_COUNT))
            return None
        exclusive = table.get(EXCLUSIVE, cores is None)
        if not isinstance(exclusive, bool):
            self.problems.append(Problem("resources.exclusive", format_value(exclusive), "true or false"))
        elif exclusive is (cores is not None):
            self.problems.append(Problem("resources", "", _EITHER))
        return cores

    def _check_resources(self, points: Sequence[Parameters], cores: int | None) -> None:
        """Add a problem for the first point with contradictory resources. cores: of the study."""
        for number, point in enumerate(points):
            exclusive = point.get(EXCLUSIVE)
            if (exclusive is True and CORES in point) or (exclusive is False and point.get(CORES, cores) is None):
                actual = ", ".join(f"{key} = {format_value(point[key])}" for key in RESOURCES if key in point)
                self.problems.append(Problem("", f"{actual} of point {number}", _EITHER))
                return

    def _flatten(self, path: str, table: object, depth: int = 0) -> list[tuple[str, str, object]]:
        """Return the names, paths and values in a table whose groups are tables, or keys with a dot. depth: 1 if a value may
        be a table, else 0."""
        if not isinstance(table, Mapping):
            self.problems.append(Problem(path, format_value(table), "a table of parameters"))
            return []
        entries: list[tuple[str, str, object]] = []
        for key, value in table.items():
            if key in GROUPS and isinstance(value, Mapping):
                entries += [(f"{key}.{inner}", f"{path}.{key}.{inner}", entry) for inner, entry in value.items()]
            elif isinstance(value, Mapping) and not depth:
                self._unknown(path, key, (*OPTIONS, *GROUPS))
            else:
                entries.append((key, below(path, key), value))
        counts = Counter(name for name, _, _ in entries)
        self.problems += [
            Problem(path_of_value, "twice in this table", "each parameter once")
            for name, path_of_value, _ in entries
            if counts.pop(name, 0) > 1
        ]
        return entries

    def _is_known(self, name: str, path_of_value: str) -> bool:
        """Whether a parameter exists; else add a problem."""
        group, dot, key = name.partition(".")
        if dot and group == "link" and key not in Impairments.model_fields:
            self._unknown(path_of_value.rpartition(".")[0], key, tuple(Impairments.model_fields))
            return False
        if (
            (group in GROUPS and key)
            if dot
            else name in OPTIONS or (name in RESOURCES and path_of_value != f"run.{name}")
        ):
            return True
        self._unknown(
            path_of_value.removesuffix(name).rstrip("."), name, (*OPTIONS, *(f"{group}.KEY" for group in GROUPS))
        )
        return False

    def _is_valid(self, name: str, path_of_value: str, value: object) -> bool:
        """Whether a parameter exists and the value has its type; else add a problem."""
        if not self._is_known(name, path_of_value):
            return False
        if name == CORES and not _is_core_count(value):
            self.problems.append(Problem(path_of_value, format_value(value), _CORE_COUNT))
            return False
        types = {**OPTIONS, **RESOURCES}.get(name, (str, int, float, bool))
        if isinstance(value, types) and (not isinstance(value, bool) or bool in types):
            return True
        self.problems.append(
            Problem(
                path_of_value,
                format_value(value),
                join_alternatives(
                    text for type_ in types if type_ is not int or float not in types for text in _ALTERNATIVES[type_]
                ),
            )
        )
        return False

    def _check_names(
        self,
        common: Parameters,
        axes: Parameters | Mapping[str, object],
        ranges: Mapping[str, object],
        listed_points: Sequence[Parameters],
    ) -> None:
        """Add problems for duplicate and missing parameters."""
        tables = {**dict.fromkeys(axes, "[grid]"), **dict.fromkeys(ranges, "[latin]")}
        duplicates = [(f"latin.ranges.{name}", "[grid]") for name in ranges if name in axes]
        duplicates += [
            (f"{item('point', number)}.{name}", tables[name])
            for number, point in enumerate(listed_points)
            for name in point
            if name in tables
        ]
        self.problems += [
            Problem(path, f"also in {table}", "each parameter in one table") for path, table in duplicates
        ]
        if len({repr(sorted(point.items())) for point in listed_points}) < len(listed_points):
            self.problems.append(Problem("point", "two equal tables", "points that all differ"))
        set_parameters = {*common, *axes, *ranges}
        invalid = {problem.path.rpartition(".")[2].partition("[")[0] for problem in self.problems}
        for name in _REQUIRED:
            is_set = name in set_parameters or (listed_points and all(name in point for point in listed_points))
            if not is_set and name not in invalid:
                self.problems.append(Problem("run", "", f"the key {name!r}"))
        if not axes and not ranges and not listed_points and not self.problems:
            self.problems.append(Problem("", "nothing that varies", "a table [grid] or [latin], or tables [[point]]"))

    def _check_size(self, points: int) -> None:
        """Add a problem for too many points, before they are generated."""
        if points > MAX_POINTS:
            self.problems.append(Problem("", f"{points:,} points", f"at most {MAX_POINTS:,}"))

    def _unknown(self, path: str, key: object, known: Sequence[str]) -> None:
        self.problems.append(
            Problem(
                path,
                f"unknown key {format_value(key)}",
                f"one of the keys {join_alternatives(known)}",
                nearest(key, known),
            )
        )
