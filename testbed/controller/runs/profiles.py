"""Profiles as a user selects them: "ideal", the name of one of the protocol's profiles, or a TOML file:

    name = "faster"
    like = "emp-2001"         # profile that gives the values of missing keys; "ideal" by default
    receive = "2us"           # a time; `bus_rate` and all other rates: "4gbit"; `bus_burst`: "512"

    [work.copy]               # work on host cores, by kind
    rate = "2gbit"

All keys are those of `Profile` and `Cost` in `protocols.core.profile`.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Mapping
from dataclasses import asdict, fields, replace
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from protocols.core.host_work import STANDARD
from protocols.core.profile import IDEAL, Cost, Profile
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
    """Resolve a profile, a mapping of its values (as from `profile_values`), its name, or its file. within: files whose
    "like" refers to this profile, directly or not. Raises NotFoundError, DescriptionError with all problems, TestbedError
    for an unreadable file."""
    if isinstance(given, Profile):
        return given
    if isinstance(given, Mapping):
        return _build(given, protocol, "the profile")
    text = str(given)
    if isinstance(given, Path) or text.endswith(".toml") or "/" in text:
        return _load(Path(given), protocol, within)
    known = {profile.name: profile for profile in (IDEAL, *protocol.profiles)}
    if text not in known:
        hint = did_you_mean(text, known)
        raise NotFoundError(f"unknown profile {text!r}{hint}; use one of {', '.join(known)}, or a TOML file")
    return known[text]


def node_profiles(
    target: RunTarget,
    given: Mapping[str, str | Path | Profile | Mapping[str, Any]],
    mode: str,
    protocol: Protocol,
    default: Profile,
) -> Mapping[str, Profile]:
    """Resolve the profiles of nodes with another profile than the default. given: names of the run, by node; it overrides
    the description, whose files are relative to its folder. Empty in mode live, where nothing has a modelled cost. Raises
    NotFoundError for an unknown node, UnsupportedError for a given profile in mode live, and the errors of `profile_of`."""
    names = {node.name: node.profile for node in target.layout.nodes}
    for name in given:
        if name not in names:
            raise NotFoundError(f"profile for {name!r}: there is no such node{did_you_mean(name, names)}")
    if mode == "live":
        if given:
            raise UnsupportedError(
                "profiles of nodes need --mode sim or --mode dilated: in live, NICs and hosts have no modelled cost"
            )
        return {}
    resolved: dict[str, Profile] = {}
    for name, described in names.items():
        if name in given:
            resolved[name] = profile_of(given[name], protocol)
        elif described:
            resolved[name] = described_profile(target, name, described, protocol)
    return {name: profile for name, profile in resolved.items() if profile != default}


def described_profile(target: RunTarget, node: str, described: str, protocol: Protocol) -> Profile:
    """Resolve the profile of a node in a description, whose files are relative to its folder. Raises the errors of
    `profile_of`."""
    is_file = described.endswith(".toml") or "/" in described
    try:
        return profile_of(target.base / described if is_file else described, protocol)
    except NotFoundError as error:
        raise NotFoundError(f"the profile of node {node}: {error}") from error


def profile_values(profile: Profile) -> Mapping[str, object]:
    """Return the profile's name and all values that differ from the ideal profile's; in ns, bit/s and bytes."""
    ideal = asdict(IDEAL)
    return {key: value for key, value in asdict(profile).items() if key == "name" or value != ideal[key]}


def _load(path: Path, protocol: Protocol, within: tuple[Path, ...]) -> Profile:
    if path.absolute() in within:
        raise TestbedError(f"{path} refers to itself by 'like'")
    try:
        document = tomllib.loads(read_text(path))
    except FileNotFoundError as error:
        raise NotFoundError(f"there is no file {path}") from error
    except OSError as error:
        raise TestbedError(f"{path} cannot be read: {reason_of(error)}") from error
    except (UnicodeDecodeError, tomllib.TOMLDecodeError, RecursionError) as error:
        raise DescriptionError(str(path), [Problem("", "", f"a file in TOML: {error}")]) from error
    return _build({"name": path.stem, **document}, protocol, str(path), (*within, path.absolute()))


def _build(document: Mapping[str, Any], protocol: Protocol, source: str, within: tuple[Path, ...] = ()) -> Profile:
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
            values[key] = _parse_work(value, protocol, problems)
        else:
            try:
                values[key] = _parse_value(key, value)
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


def _unknown(path: str, kind: str, name: str, known: list[str], expected: str) -> Problem:
    matches = get_close_matches(name, known, 1)
    return Problem(path, f"unknown {kind} {name!r}", expected, matches[0] if matches else "")


def _parse_work(table: object, protocol: Protocol, problems: list[Problem]) -> Mapping[str, Cost]:
    """Read the costs of work on host cores, and append errors to `problems`."""
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
                    values[key] = _parse_value(key, value)
                except UnitError as error:
                    problems.append(Problem(f"{path}.{key}", repr(value), error.expected, error.suggestion))
            work[kind] = Cost(**values)
    return work


def _parse_value(key: str, value: object) -> object:
    if key in ("name", "steering"):
        return _check_type(str, value, "a text")
    if key in _FLAGS:
        return _check_type(bool, value, "true or false")
    if type(value) is int and value >= 0:
        return value  # in the base unit already, as in a run's folder
    if key in _COUNTS:
        raise UnitError(value, "a whole number")
    parse: Callable[[object], int] = (
        parse_rate if key.endswith("rate") else parse_size if key == "bus_burst" else parse_duration
    )
    return parse(value)


def _check_type(kind: type, value: object, expected: str) -> object:
    if not isinstance(value, kind):
        raise UnitError(value, expected)
    return value
