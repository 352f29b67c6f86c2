"""What a test asks for, ``@pytest.mark.cluster("star-4", loss="1%", links={"n1": {"delay": "5ms"}})``, and what it comes to.

The markers of a test, its class and its module add up: the nearest that names a cluster begins, nearer ones add to it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

from testbed.errors import TestbedError

if TYPE_CHECKING:
    import pytest

    from testbed.cluster.api import Cluster
    from testbed.kernel.datapaths import Asked as Datapath
    from testbed.spec.model import Description

Mode: TypeAlias = Literal["sim", "live"]
MODES: Final[tuple[Mode, Mode]] = ("sim", "live")

_OWN: Final = ("links", "seed", "datapath", "mode", "requires", "programs")


class MarkerError(TestbedError):
    """A marker, or an option, that does not say what it could say."""


@dataclass(frozen=True, slots=True)
class Asked:
    """What markers say. source: a shipped topology's name, a TOML file or a description; None: none is named. base: where
    a relative path begins. impairments: of all links. links: by target ("n1", "n1--s1"), stronger; there "direction" says
    which. datapath: who shall carry impaired links. requires: names of requirements, programs: of programs."""

    source: str | Path | Description | None = None
    base: Path = Path()
    impairments: Mapping[str, Any] = field(default_factory=dict)
    links: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    seed: int | None = None
    datapath: Datapath = "auto"
    requires: tuple[str, ...] = ()
    programs: tuple[str, ...] = ()

    @property
    def origin(self) -> str:
        """The file that it comes from; empty if it comes from none."""
        return str(self._path()) if self._is_file() else ""

    def description(self) -> Cluster:
        """The cluster as it is asked for. Raises MarkerError where none is named, and what `Cluster.load` does."""
        from testbed.cluster.api import Cluster
        from testbed.pytest_plugin.laying import Overlay, laid_over
        from testbed.spec.elements import Impairments

        if self.source is None:
            raise MarkerError('the test does not say which cluster: @pytest.mark.cluster("star-4")')
        if isinstance(self.source, (str, Path)):
            begun = Cluster.load(self._path() if self._is_file() else self.source)
        else:
            begun = Cluster(**{name: getattr(self.source, name) for name in type(self.source).model_fields})
        overlays = [Overlay("all", Impairments(**self.impairments))] if self.impairments else []
        for target, said in self.links.items():
            keys = dict(said)
            direction = str(keys.pop("direction", ""))
            overlays.append(Overlay(target, Impairments(**keys), direction))
        return laid_over(begun, overlays, self.seed)

    def _is_file(self) -> bool:
        text = str(self.source)
        return isinstance(self.source, Path) or (
            isinstance(self.source, str) and ("/" in text or text.endswith(".toml"))
        )

    def _path(self) -> Path:
        return self.base / str(self.source)


def asked(markers: Iterable[pytest.Mark], base: Path, source: object = None) -> Asked:
    """What `markers`, the nearest first, come to. source: stronger than what they name, where it is not None. Raises
    MarkerError."""
    from testbed.spec.model import Description

    keys: dict[str, Any] = {}
    for marker in markers:
        if len(marker.args) > 1:
            raise MarkerError(f"cluster() takes one cluster, found {marker.args!r}")
        links = marker.kwargs.get("links", {})
        if not isinstance(links, Mapping) or not all(isinstance(said, Mapping) for said in links.values()):
            raise MarkerError(f"links: found {links!r}, expected {{'n1--s1': {{'loss': '5%'}}}}")
        links = {**links, **keys.get("links", {})}
        keys = {**marker.kwargs, **keys} | ({"links": links} if links else {})
        if marker.args:
            source = marker.args[0] if source is None else source
            break
    if not (source is None or isinstance(source, (str, Path, Description))):
        raise MarkerError(f"found {source!r}, expected a topology's name, a TOML file or a description")
    return Asked(
        source,
        base,
        impairments={key: value for key, value in keys.items() if key not in _OWN},
        links=keys.get("links", {}),
        seed=keys.get("seed"),
        datapath=keys.get("datapath", "auto"),
        requires=_names("requires", keys.get("requires", ())),
        programs=_names("programs", keys.get("programs", ())),
    )


def beside(base: Path, scenario: object) -> object:
    """The test's scenario; one in a TOML file is looked for beside the test, as a cluster's description is."""
    if isinstance(scenario, Path) or (isinstance(scenario, str) and scenario.endswith(".toml")):
        return base / scenario
    return scenario


def modes(markers: Iterable[pytest.Mark], wanted: str) -> tuple[tuple[Mode, ...], str]:
    """In which modes a test is to run, and why it can't in any. wanted: "sim", "live" or "both". Raises MarkerError."""
    said = next((marker.kwargs["mode"] for marker in markers if "mode" in marker.kwargs), "both")
    if said not in (*MODES, "both"):
        raise MarkerError(f"mode: found {said!r}, expected 'sim', 'live' or 'both'")
    can = tuple(mode for mode in MODES if said in (mode, "both"))
    found = tuple(mode for mode in can if wanted in (mode, "both"))
    return (found, "") if found else (can, f"it runs in {said} mode only, and --testbed-mode is {wanted}")


def _names(key: str, value: str | Sequence[str]) -> tuple[str, ...]:
    names = (value,) if isinstance(value, str) else tuple(value)
    if not all(isinstance(name, str) for name in names):
        raise MarkerError(f"{key}: found {value!r}, expected names")
    return names
