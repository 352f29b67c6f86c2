"""Studies from TOML: what all runs share, and the parameters that vary::

    [run]
    cluster = "star-4"
    workload = "random"
    mode = "sim"
    settings = { messages = 200 }

    [grid]                                # every combination
    protocol = ["emp", "via"]
    "link.loss" = ["0%", "1%", "5%"]
    seed = [1, 2, 3]

    [latin]                               # or a Latin hypercube, of each combination of the grid
    points = 20
    seed = 7
    ranges = { "link.delay" = { from = "1us", to = "1ms", scale = "log" } }

    [[point]]                             # or points one by one
    protocol = "am2"

    [resources]                           # of a run in namespaces; without, it has the machine for itself
    cores = 2

Strict, as descriptions are: all problems at once, with the nearest valid names. Parameters are those of `testbed run`:
``cluster``, ``workload``, ``protocol``, ``mode``, ``seed``, ...; ``settings.KEY`` of the workload, ``firmware.KEY`` of the
protocol's NICs, and ``link.KEY``: an impairment of all links that do not say their own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from testbed.errors import DescriptionError, Problem
from testbed.spec.elements import Impairments
from testbed.spec.loader import read_text, table_of
from testbed.spec.problems import below, item, joined, nearest, shown
from testbed.studies.designs import MAX_POINTS, Parameters, Range, Value, grid, latin_hypercube, read_range

OPTIONS: Final[Mapping[str, tuple[type, ...]]] = {
    "cluster": (str,), "workload": (str,), "protocol": (str,), "codec": (str,), "mode": (str,), "seed": (int,),
    "repeat": (int,), "timeout": (int, float), "patience": (int, float), "check": (bool,), "scenario": (str,),
    "profile": (str,), "ranks_per_node": (int,), "nics": (str,), "queues": (int,), "steering": (str,), "bind": (bool,),
    "dilate": (int,),
}  # fmt: skip
"""Parameters without a dot, and the types of their values."""

GROUPS: Final = ("settings", "firmware", "link")
"""Parameters ``GROUP.KEY``."""

_REQUIRED: Final = ("cluster", "workload")
_TABLES: Final = ("name", "run", "grid", "latin", "point", "resources")
_RESOURCES: Final = ("cores",)


@dataclass(frozen=True, slots=True)
class Study:
    """A study. points: the parameters of each run, in the order of the file. varied: names of those that differ between
    points. base: directory of relative files. cores: that a run in namespaces needs; None for all of the machine."""

    name: str
    points: tuple[Parameters, ...]
    varied: tuple[str, ...]
    base: Path
    cores: int | None = None


def load(path: str | Path) -> Study:
    """Load a file. Raises DescriptionError, NotFoundError, PermissionDeniedError."""
    file = Path(path)
    return parse(read_text(file), str(path), file.name.removesuffix(".toml"), file.absolute().parent)


def parse(text: str, source: str, name: str = "study", base: Path | None = None) -> Study:
    """Parse a text. source: its name in errors. name: if the text has none. base: directory of relative files. Raises
    DescriptionError."""
    reader = _Reader(table_of(text, source))
    study = reader.study(name, base or Path.cwd())
    if reader.problems:
        raise DescriptionError(source, reader.problems)
    assert study is not None
    return study


class _Reader:
    """Reads a study's table, and collects its problems."""

    def __init__(self, table: Mapping[str, object]) -> None:
        self.problems: list[Problem] = []
        self._table = table

    def study(self, name: str, base: Path) -> Study | None:
        """Return the study; None if it has problems."""
        for key in self._table:
            if key not in _TABLES:
                self._unknown("", key, _TABLES)
        if not isinstance(title := self._table.get("name", name), str) or not title:
            self.problems.append(Problem("name", shown(title), "a text"))
        common = self._parameters("run", self._table.get("run", {}))
        axes = self._axes()
        ranges, count, seed = self._latin()
        listed = self._list()
        cores = self._cores()
        self._check_names(common, axes, ranges, listed)
        if self.problems:
            return None
        points = []
        for combination in grid(axes):
            sampled = latin_hypercube(ranges, count, seed) if ranges else iter([{}])
            points += [{**common, **combination, **sample, **one} for sample in sampled for one in (listed or [{}])]
        self._check_points(points)
        varied = (*axes, *ranges, *dict.fromkeys(key for one in listed for key in one))
        return Study(str(title), tuple(points), tuple(dict.fromkeys(varied)), base, cores)

    def _parameters(self, place: str, table: object) -> dict[str, Value]:
        """Read parameters with one value each."""
        flat: dict[str, Value] = {}
        for name, where, value in self._flat(place, table):
            if self._is_valid(name, where, value):
                assert isinstance(value, str | int | float)
                flat[name] = value
        return flat

    def _axes(self) -> dict[str, Sequence[Value]]:
        axes: dict[str, Sequence[Value]] = {}
        for name, where, values in self._flat("grid", self._table.get("grid", {})):
            if not isinstance(values, list) or not values:
                self.problems.append(Problem(where, shown(values), "a list of values, one at least"))
                continue
            valid = [self._is_valid(name, item(where, number), value) for number, value in enumerate(values)]
            if all(valid):
                if len(set(map(repr, values))) < len(values):
                    self.problems.append(Problem(where, shown(values), "values that all differ"))
                axes[name] = values
        return axes

    def _latin(self) -> tuple[dict[str, Range], int, int]:
        """Read the hypercube: its ranges, number of points, and seed."""
        table = self._table.get("latin")
        if table is None:
            return {}, 1, 0
        if not isinstance(table, Mapping):
            self.problems.append(Problem("latin", shown(table), "a table"))
            return {}, 1, 0
        for key in table:
            if key not in ("points", "seed", "ranges"):
                self._unknown("latin", key, ("points", "seed", "ranges"))
        count, seed = table.get("points"), table.get("seed", 0)
        if isinstance(count, bool) or not isinstance(count, int) or not 1 <= count <= MAX_POINTS:
            self.problems.append(Problem("latin.points", shown(count), f"a number of points, 1 to {MAX_POINTS:,}"))
            count = 1
        if isinstance(seed, bool) or not isinstance(seed, int) or seed < 0:
            self.problems.append(Problem("latin.seed", shown(seed), "an integer, 0 or more"))
            seed = 0
        ranges: dict[str, Range] = {}
        for name, where, value in self._flat("latin.ranges", table.get("ranges", {}), deep=1):
            scope = read_range(value, where)
            if isinstance(scope, Range):
                if self._is_known(name, where):
                    ranges[name] = scope
            else:
                self.problems += scope
        if not ranges and not self.problems:
            self.problems.append(Problem("latin.ranges", "none", "the range of one parameter or more"))
        return ranges, count, seed

    def _list(self) -> list[dict[str, Value]]:
        raw = self._table.get("point", [])
        if not isinstance(raw, list):
            self.problems.append(Problem("point", shown(raw), "tables [[point]]"))
            return []
        return [self._parameters(item("point", number), one) for number, one in enumerate(raw)]

    def _cores(self) -> int | None:
        table = self._table.get("resources", {})
        if not isinstance(table, Mapping):
            self.problems.append(Problem("resources", shown(table), "a table"))
            return None
        for key in table:
            if key not in _RESOURCES:
                self._unknown("resources", key, _RESOURCES)
        cores = table.get("cores")
        if cores is not None and (isinstance(cores, bool) or not isinstance(cores, int) or cores < 1):
            self.problems.append(Problem("resources.cores", shown(cores), "a number of processors, 1 or more"))
            return None
        return cores

    def _flat(self, place: str, table: object, deep: int = 0) -> list[tuple[str, str, object]]:
        """List names, places and values of a table whose groups are tables, or keys with a dot. deep: 1 where a value
        itself is a table."""
        if not isinstance(table, Mapping):
            self.problems.append(Problem(place, shown(table), "a table of parameters"))
            return []
        found: list[tuple[str, str, object]] = []
        for key, value in table.items():
            if key in GROUPS and isinstance(value, Mapping):
                found += [(f"{key}.{inner}", f"{place}.{key}.{inner}", one) for inner, one in value.items()]
            elif isinstance(value, Mapping) and not deep:
                self._unknown(place, key, (*OPTIONS, *GROUPS))
            else:
                found.append((key, below(place, key), value))
        return found

    def _is_known(self, name: str, where: str) -> bool:
        group, dot, key = name.partition(".")
        if dot and group == "link" and key not in Impairments.model_fields:
            self._unknown(where.rpartition(".")[0], key, tuple(Impairments.model_fields))
            return False
        if (group in GROUPS and key) if dot else name in OPTIONS:
            return True
        self._unknown(where.removesuffix(name).rstrip("."), name, (*OPTIONS, *(f"{group}.KEY" for group in GROUPS)))
        return False

    def _is_valid(self, name: str, where: str, value: object) -> bool:
        """Whether it is a parameter with a value of its type; else a problem is noted."""
        if not self._is_known(name, where):
            return False
        types = OPTIONS.get(name, (str, int, float, bool))
        if isinstance(value, types) and (not isinstance(value, bool) or bool in types):
            return True
        self.problems.append(Problem(where, shown(value), f"a value of type {joined([one.__name__ for one in types])}"))
        return False

    def _check_names(
        self,
        common: Parameters,
        axes: Parameters | Mapping[str, object],
        ranges: Mapping[str, object],
        listed: Sequence[Parameters],
    ) -> None:
        """Find parameters that are said twice, and those that are missing."""
        for name in axes.keys() & ranges.keys():
            self.problems.append(Problem(f"latin.ranges.{name}", "also in [grid]", "one place for each parameter"))
        everywhere = {*common, *axes, *ranges}
        for name in _REQUIRED:
            if name not in everywhere and not (listed and all(name in one for one in listed)):
                self.problems.append(Problem("run", "", f"the key {name!r}"))
        if not axes and not ranges and not listed and not self.problems:
            self.problems.append(Problem("", "nothing that varies", "a table [grid] or [latin], or tables [[point]]"))

    def _check_points(self, points: Sequence[Parameters]) -> None:
        if len(points) > MAX_POINTS:
            self.problems.append(Problem("", f"{len(points):,} points", f"{MAX_POINTS:,} at most"))

    def _unknown(self, place: str, key: object, known: Sequence[str]) -> None:
        self.problems.append(
            Problem(place, f"unknown key {shown(key)}", f"one of the keys {joined(known)}", nearest(key, known))
        )
