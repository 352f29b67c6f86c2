"""Profiles as a user names them: "ideal", the name of one that the protocol brings, or a file in TOML:

    name = "faster"
    like = "emp-2001"         # the base for keys that are missing; "ideal" by default
    receive = "2us"           # a time; `bus_rate` and all other rates: "4gbit"; `bus_burst`: "512"

    [work.copy]               # work on host cores, by kind
    rate = "2gbit"

All keys are those of `protocols.core.profile.Profile` and `protocols.core.host_work.Cost`.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Mapping
from dataclasses import asdict, fields, replace
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from protocols.core.host_work import STANDARD, Cost
from protocols.core.profile import IDEAL, Profile
from protocols.core.protocol import Protocol
from testbed.errors import (
    DescriptionError,
    NotFoundError,
    Problem,
    TestbedError,
    UnsupportedError,
    did_you_mean,
    reason_of,
)
from testbed.kernel.filesystem import read_text
from testbed.spec.units import UnitError, parse_duration, parse_rate, parse_size

if TYPE_CHECKING:
    from testbed.controller.runs.run_target import RunTarget

_COUNTS: Final = ("processors", "receive_ring", "receive_queues", "ahead", "cores", "cores_per_cache")
_FLAGS: Final = ("pages_apart", "hosted", "polled", "round_robin", "busy_waiting")


def profile_of(
    given: str | Path | Profile | Mapping[str, Any], protocol: Protocol, within: tuple[Path, ...] = ()
) -> Profile:
    """Resolve a profile, a mapping of its values (as from `profile_values`), its name, or its file. within: files that are
    being read for it. Raises NotFoundError, DescriptionError with all problems, TestbedError for a file that cannot be
    read."""
    if isinstance(given, Profile):
        return given
    if isinstance(given, Mapping):
        return _built(given, protocol, "the profile")
    text = str(given)
    if isinstance(given, Path) or text.endswith(".toml") or "/" in text:
        return _loaded(Path(given), protocol, within)
    known = {profile.name: profile for profile in (IDEAL, *protocol.profiles)}
    if text not in known:
        hint = did_you_mean(text, known)
        raise NotFoundError(f"no profile is called {text!r}{hint}; there are {', '.join(known)}, and files in TOML")
    return known[text]


def node_profiles(
    target: RunTarget,
    given: Mapping[str, str | Path | Profile | Mapping[str, Any]],
    mode: str,
    protocol: Protocol,
    usual: Profile,
) -> Mapping[str, Profile]:
    """Resolve the profiles of nodes that have another than the usual one: as the run says, otherwise as the description
    does, whose files are named from its folder. In namespaces nothing is priced. Raises NotFoundError for an unknown node,
    UnsupportedError in mode live where the run says one, and the errors of `profile_of`."""
    names = {node.name: node.profile for node in target.layout.nodes}
    for name in given:
        if name not in names:
            raise NotFoundError(f"profile for {name!r}: no node is called so{did_you_mean(name, names)}")
    if mode == "live":
        if given:
            raise UnsupportedError(
                "profiles of nodes: in namespaces NICs take what this machine takes; sim and dilated price"
            )
        return {}
    found: dict[str, Profile] = {}
    for name, said in names.items():
        if name in given:
            found[name] = profile_of(given[name], protocol)
        elif said:
            is_file = said.endswith(".toml") or "/" in said
            found[name] = profile_of(target.base / said if is_file else said, protocol)
    return {name: profile for name, profile in found.items() if profile != usual}


def profile_values(profile: Profile) -> Mapping[str, object]:
    """Return its name and all values that differ from the ideal profile's; ns, bit/s and bytes."""
    ideal = asdict(IDEAL)
    return {key: value for key, value in asdict(profile).items() if key == "name" or value != ideal[key]}


def _loaded(path: Path, protocol: Protocol, within: tuple[Path, ...]) -> Profile:
    if path.absolute() in within:
        raise TestbedError(f"{path} is like itself")
    try:
        document = tomllib.loads(read_text(path))
    except FileNotFoundError as error:
        raise NotFoundError(f"there is no file {path}") from error
    except OSError as error:
        raise TestbedError(f"{path} cannot be read: {reason_of(error)}") from error
    except (UnicodeDecodeError, tomllib.TOMLDecodeError, RecursionError) as error:
        raise DescriptionError(str(path), [Problem("", "", f"a file in TOML: {error}")]) from error
    return _built({"name": path.stem, **document}, protocol, str(path), (*within, path.absolute()))


def _built(document: Mapping[str, Any], protocol: Protocol, source: str, within: tuple[Path, ...] = ()) -> Profile:
    keys = [field.name for field in fields(Profile)]
    problems: list[Problem] = []
    values: dict[str, Any] = {}
    base = IDEAL
    for key, value in document.items():
        if key == "like":
            try:
                base = profile_of(str(value), protocol, within)
            except TestbedError as error:
                problems.append(Problem(key, repr(value), f"a profile's name: {error}"))
        elif key not in keys:
            problems.append(_unknown("", "key", key, [*keys, "like"], "a key of a profile"))
        elif key == "steering" and value not in ("", *protocol.steering):
            problems.append(_unknown("", "hash", str(value), [*protocol.steering], "a hash of the protocol"))
        elif key == "work":
            values[key] = _work(value, protocol, problems)
        else:
            try:
                values[key] = _value(key, value)
            except UnitError as error:
                problems.append(Problem(key, repr(value), error.expected, error.suggestion))
    if "work" in values:
        values["work"] = {**base.work, **values["work"]}
    if not problems:
        try:
            return replace(base, **values)
        except ValueError as error:
            problems.append(Problem("", "", f"other values: {error}"))
    raise DescriptionError(source, problems)


def _unknown(path: str, what: str, name: str, known: list[str], expected: str) -> Problem:
    near = get_close_matches(name, known, 1)
    return Problem(path, f"unknown {what} {name!r}", expected, near[0] if near else "")


def _work(table: object, protocol: Protocol, problems: list[Problem]) -> Mapping[str, Cost]:
    """Read the costs of work on host cores, and add what is wrong with them to the problems."""
    kinds, costs = [*STANDARD, *protocol.host_work], [field.name for field in fields(Cost)]
    if not isinstance(table, Mapping):
        problems.append(Problem("work", repr(table), "tables by kind of work: [work.copy]"))
        return {}
    work = {}
    for kind, given in table.items():
        path = f"work.{kind}"
        if kind not in kinds:
            problems.append(_unknown("work", "kind", str(kind), kinds, f"one of {', '.join(kinds)}"))
        elif not isinstance(given, Mapping):
            problems.append(Problem(path, repr(given), f"a table of {', '.join(costs)}"))
        else:
            values: dict[str, Any] = {}
            for key, value in given.items():
                if key not in costs:
                    problems.append(_unknown(path, "key", str(key), costs, f"one of {', '.join(costs)}"))
                    continue
                try:
                    values[key] = _value(key, value)
                except UnitError as error:
                    problems.append(Problem(f"{path}.{key}", repr(value), error.expected, error.suggestion))
            work[kind] = Cost(**values)
    return work


def _value(key: str, value: object) -> object:
    if key in ("name", "steering"):
        return _of(str, value, "a text")
    if key in _FLAGS:
        return _of(bool, value, "true or false")
    if type(value) is int and value >= 0:
        return value  # in the base unit already, as in a run's folder
    if key in _COUNTS:
        raise UnitError(value, "a whole number")
    parse: Callable[[object], int] = (
        parse_rate if key.endswith("rate") else parse_size if key == "bus_burst" else parse_duration
    )
    return parse(value)


def _of(kind: type, value: object, expected: str) -> object:
    if not isinstance(value, kind):
        raise UnitError(value, expected)
    return value
