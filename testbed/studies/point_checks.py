"""Checks of the values of a study's points, before the first run starts.

Invalid values and unknown names are errors of the study. A combination that is not supported, such as a kernel protocol in
mode sim, becomes the outcome of its point.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, cast

from testbed import packages
from testbed.controller.runs.profiles import profile_of
from testbed.controller.runs.queue_options import check_queues
from testbed.controller.runs.run_options import RunOptions, complete
from testbed.controller.runs.run_target import find_target
from testbed.controller.runs.runner import configured
from testbed.errors import DescriptionError, NotFoundError, Problem, TestbedError
from testbed.registry import DEFAULT_PROTOCOL
from testbed.spec.elements import Impairments
from testbed.spec.problems import below
from testbed.spec.scenario import load as load_scenario
from testbed.studies.designs import Parameters
from testbed.studies.study_file import SWARM, Study
from testbed.studies.study_points import cluster_of, group, in_base
from testbed.workloads.lookup import choose


@dataclass(frozen=True, slots=True)
class _Check:
    """A check of some parameters of a point.

    names: the parameters and groups that it reads; first the one whose name may be unknown. run: the check; it raises
    TestbedError. path: the parameter or group to which errors refer; empty if their paths begin with the parameter.
    is_sampled: whether of the values of links only one is checked for each set of keys, since a description takes long to
    parse.
    """

    names: tuple[str, ...]
    run: Callable[[Parameters, Path], object]
    path: str = ""
    is_sampled: bool = False

    def part_of(self, point: Parameters) -> Parameters:
        return {name: value for name, value in point.items() if name.partition(".")[0] in self.names}

    def key(self, part: Parameters) -> str:
        """Return a text that is equal for parts of which one is checked."""
        return repr([(name, (self.is_sampled and name.startswith("link.")) or value) for name, value in part.items()])


def check_points(study: Study, numbers: Iterable[int] | None = None) -> None:
    """Check the values of points. numbers: the points' numbers; None: all. Raises DescriptionError with all problems."""
    checked: set[tuple[int, str]] = set()
    problems: dict[Problem, None] = {}
    for number in range(len(study.points)) if numbers is None else numbers:
        point = study.points[number]
        if SWARM in point:  # its values are checked when the file is read
            continue
        for index, check in enumerate(_CHECKS):
            part = check.part_of(point)
            key = (index, check.key(part))
            if key not in checked:
                checked.add(key)
                problems |= dict.fromkeys(_problems_of(check, part, study.base))
    if problems:
        raise DescriptionError(f"study {study.name}", list(problems))


def _problems_of(check: _Check, part: Parameters, base: Path) -> Iterator[Problem]:
    """Yield the problems of a part of a point."""
    try:
        check.run(part, base)
    except DescriptionError as error:
        for problem in error.problems:
            path = below(check.path, problem.path)
            if check.path in ("cluster", "scenario"):
                path = f"{check.path} {error.source}" + (f": {problem.path}" if problem.path else "")
            yield replace(problem, path=path)
    except NotFoundError as error:
        yield Problem(check.names[0], str(error), "")
    except TestbedError:
        pass  # the outcome of the point


def _check_options(part: Parameters, _: Path) -> None:
    complete(cast("RunOptions", dict(part)))


def _check_queues(part: Parameters, _: Path) -> None:
    check_queues(cast("int", part.get("queues", 1)), str(part.get("steering", "")))


def _check_protocol(part: Parameters, _: Path) -> None:
    packages.protocol(_protocol_name(part))


def _check_firmware(part: Parameters, _: Path) -> None:
    name = _protocol_name(part)
    with suppress(NotFoundError):  # an error of the check of the protocol
        configured(packages.protocol(name), name, group(part, "firmware"), "generated", "inline")


def _check_profile(part: Parameters, base: Path) -> None:
    if "profile" in part:
        profile_of(in_base(str(part["profile"]), base), packages.protocol(_protocol_name(part)))


def _check_settings(part: Parameters, base: Path) -> None:
    choose(in_base(str(part["workload"]), base), group(part, "settings"))


def _check_scenario(part: Parameters, base: Path) -> None:
    if "scenario" in part:
        load_scenario(base / str(part["scenario"]))


def _check_link(part: Parameters, _: Path) -> None:
    Impairments.model_validate(group(part, "link"))


def _check_cluster(part: Parameters, base: Path) -> None:
    find_target(cluster_of(part, base), str(part.get("mode", "live")), None)


def _protocol_name(part: Parameters) -> str:
    return str(part.get("protocol", DEFAULT_PROTOCOL))


_CHECKS: Final = (
    _Check(
        ("codec", "mode", "seed", "repeat", "timeout", "patience", "nics", "ranks_per_node", "dilate"),
        _check_options,
    ),
    _Check(("queues", "steering"), _check_queues),
    _Check(("protocol",), _check_protocol, "protocol"),
    _Check(("protocol", "firmware"), _check_firmware, "firmware"),
    _Check(("profile", "protocol"), _check_profile, "profile"),
    _Check(("workload", "settings"), _check_settings, "settings"),
    _Check(("scenario",), _check_scenario, "scenario"),
    _Check(("link",), _check_link, "link"),
    _Check(("cluster", "mode", "link"), _check_cluster, "cluster", is_sampled=True),
)
