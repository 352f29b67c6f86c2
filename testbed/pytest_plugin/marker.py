"""Marker of a test, ``@pytest.mark.cluster("star-4", loss="1%", links={"n1": {"delay": "5ms"}})``.

The markers of a test, its class and its module are combined, from the test up to the first marker that names a cluster; the
arguments of nearer markers override those of others.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias, cast, get_args

from testbed.errors import TestbedError, did_you_mean
from testbed.spec.layout import ConfiguredDatapath as Datapath

if TYPE_CHECKING:
    import pytest

    from testbed.cluster.api import Cluster
    from testbed.spec.model import Description

Mode: TypeAlias = Literal["sim", "live"]
MODES: Final[tuple[Mode, Mode]] = ("sim", "live")

Action: TypeAlias = Literal["fail", "skip", "xfail", "ignore"]
ACTIONS: Final[tuple[Action, ...]] = ("fail", "skip", "xfail", "ignore")
"""Outcomes of a test that passes on a network that was not as configured."""

_ARGUMENTS: Final = (
    "links",
    "seed",
    "datapath",
    "machines",
    "mode",
    "requires",
    "programs",
    "on_invalid",
    "on_degraded",
)


class MarkerError(TestbedError):
    """An invalid marker or option."""


@dataclass(frozen=True, slots=True)
class MarkerArguments:
    """Combined arguments of the markers of a test.

    source: name of a shipped topology, a TOML file or a description; None if not given. base: directory of relative paths.
    impairments: impairments of all links. links: impairments by target ("n1", "n1--s1"), which override those of all links;
    their key "direction" selects a direction. seed: seed of the cluster; None: the description's. datapath: datapath of
    impaired links. requires: names of requirements. programs: names of required programs. on_invalid, on_degraded: outcome
    on such a network; None if not given. machines: machines file, for a live cluster on several machines; None: the cluster
    is on this machine.
    """

    source: str | Path | Description | None = None
    base: Path = Path()
    impairments: Mapping[str, Any] = field(default_factory=dict)
    links: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    seed: int | None = None
    datapath: Datapath = "auto"
    requires: tuple[str, ...] = ()
    programs: tuple[str, ...] = ()
    on_invalid: Action | None = None
    on_degraded: Action | None = None
    machines: Path | None = None

    @property
    def origin(self) -> str:
        """Path of the description's file; empty if there is none."""
        return str(self._path()) if self._is_file() else ""

    def description(self) -> Cluster:
        """Build the cluster. Raises MarkerError if no source is given, and the errors of `Cluster.load`."""
        from testbed.cluster.api import Cluster
        from testbed.pytest_plugin.under_test import Overlay, apply_overlays
        from testbed.spec.elements import Impairments

        if self.source is None:
            raise MarkerError('the test names no cluster: add a marker such as @pytest.mark.cluster("star-4")')
        if isinstance(self.source, (str, Path)):
            cluster = Cluster.load(self._path() if self._is_file() else self.source)
        else:
            cluster = Cluster(**{name: getattr(self.source, name) for name in type(self.source).model_fields})
        overlays = [Overlay("all", Impairments(**self.impairments))] if self.impairments else []
        for target, impairments in self.links.items():
            keys = dict(impairments)
            direction = str(keys.pop("direction", ""))
            overlays.append(Overlay(target, Impairments(**keys), direction))
        return apply_overlays(cluster, overlays, self.seed)

    def _is_file(self) -> bool:
        text = str(self.source)
        return isinstance(self.source, Path) or (
            isinstance(self.source, str) and ("/" in text or text.endswith(".toml"))
        )

    def _path(self) -> Path:
        return self.base / str(self.source)


def read_markers(markers: Iterable[pytest.Mark], base: Path, source: object = None) -> MarkerArguments:
    """Combine markers, the nearest first. source: replaces their cluster, unless it is None. Raises MarkerError."""
    from testbed.spec.elements import Impairments
    from testbed.spec.model import Description

    keys: dict[str, Any] = {}
    for marker in markers:
        if len(marker.args) > 1:
            raise MarkerError(f"cluster() takes one cluster, found {marker.args!r}")
        links = marker.kwargs.get("links", {})
        if not isinstance(links, Mapping) or not all(
            isinstance(impairments, Mapping) for impairments in links.values()
        ):
            raise MarkerError(f"links: found {links!r}, expected {{'n1--s1': {{'loss': '5%'}}}}")
        links = {**links, **keys.get("links", {})}
        keys = {**marker.kwargs, **keys} | ({"links": links} if links else {})
        if marker.args:
            source = marker.args[0] if source is None else source
            break
    if not (source is None or isinstance(source, (str, Path, Description))):
        raise MarkerError(f"found {source!r}, expected a topology's name, a TOML file or a description")
    impairments = {key: value for key, value in keys.items() if key not in _ARGUMENTS}
    names = (*_ARGUMENTS, *Impairments.model_fields)
    for key in impairments:
        if key not in names:
            raise MarkerError(f"cluster() has no argument {key!r}{did_you_mean(key, names)}")
    return MarkerArguments(
        source,
        base,
        impairments=impairments,
        links=keys.get("links", {}),
        seed=keys.get("seed"),
        datapath=_datapath(keys.get("datapath", "auto")),
        requires=_names("requires", keys.get("requires", ())),
        programs=_names("programs", keys.get("programs", ())),
        on_invalid=_action("on_invalid", keys),
        on_degraded=_action("on_degraded", keys),
        machines=_machines(base, keys.get("machines")),
    )


def has_cluster(markers: Iterable[pytest.Mark], base: Path) -> bool:
    """Whether markers name a cluster. False for markers of another plug-in that has a marker of the same name."""
    try:
        return read_markers(markers, base).source is not None
    except MarkerError:
        return False


def resolve_scenario(base: Path, scenario: object) -> object:
    """Resolve the path of a scenario's TOML file. base: the test's directory."""
    if isinstance(scenario, Path) or (isinstance(scenario, str) and scenario.endswith(".toml")):
        return base / scenario
    return scenario


def select_modes(markers: Iterable[pytest.Mark], requested: str) -> tuple[tuple[Mode, ...], str]:
    """Return the modes of a test, and the reason to skip it if it supports none of the requested modes; otherwise empty.
    requested: "sim", "live" or "both". Raises MarkerError."""
    marked = next((marker.kwargs["mode"] for marker in markers if "mode" in marker.kwargs), "both")
    if marked not in (*MODES, "both"):
        raise MarkerError(f"mode: found {marked!r}, expected 'sim', 'live' or 'both'")
    supported = tuple(mode for mode in MODES if marked in (mode, "both"))
    selected = tuple(mode for mode in supported if requested in (mode, "both"))
    if not selected:
        return supported, f"the test needs mode {marked}, and --testbed-mode is {requested}"
    return selected, ""


def check_action(key: str, value: object) -> Action:
    """Check and return an action. key: name of the argument or option, for the error. Raises MarkerError."""
    for action in ACTIONS:
        if value == action:
            return action
    raise MarkerError(f"{key}: found {value!r}, expected 'fail', 'skip', 'xfail' or 'ignore'")


def _datapath(value: object) -> Datapath:
    for datapath in get_args(Datapath):
        if value == datapath:
            return cast("Datapath", datapath)
    raise MarkerError(f"datapath: found {value!r}, expected {', '.join(get_args(Datapath))}")


def _machines(base: Path, value: object) -> Path | None:
    if not isinstance(value, str | Path | None):
        raise MarkerError(f"machines: found {value!r}, expected a machines file")
    return base / value if value is not None else None


def _action(key: str, keys: Mapping[str, Any]) -> Action | None:
    return check_action(key, keys[key]) if key in keys else None


def _names(key: str, value: str | Sequence[str]) -> tuple[str, ...]:
    names = (value,) if isinstance(value, str) else tuple(value)
    if not all(isinstance(name, str) for name in names):
        raise MarkerError(f"{key}: found {value!r}, expected names")
    return names
