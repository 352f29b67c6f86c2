"""What the relay is to do: a file beside the cluster's state, which outlives the relay.

Where there are processors to spare a relay is several processes, each with its share of the links. Whoever changes the
orders writes them whole and then tells the relay; a process that is started again finds what its predecessor had.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, Literal
from zlib import crc32

from testbed.spec.layout import Impairment
from testbed.spec.layout_json import impairment_from_json, impairment_to_json

DIRECTIONS: Final[tuple[Literal["forward"], Literal["backward"]]] = ("forward", "backward")
_NOTHING = Impairment()
_MYRINET: Final = b"myrinet"


@dataclass(frozen=True, slots=True)
class Treated:
    """What one direction shall do. rules: injected ones, by a name that stays theirs. replay: the path of a log of fates
    that decides what the impairment leaves to no chance any more."""

    impairment: Impairment = _NOTHING
    rules: Mapping[str, str] = field(default_factory=dict)
    replay: str = ""


@dataclass(frozen=True, slots=True)
class Plug:
    """A port of one of Myrinet's switches."""

    switch: str
    port: int


@dataclass(frozen=True, slots=True)
class Carried:
    """A link that the relay carries. a, b: its free ends in the wire namespace; forward comes in on a. plugs: where a and b
    are Myrinet's ports instead, which are in the relay itself. is_cut: such a cable is pulled out."""

    name: str
    a: str
    b: str
    forward: Treated = field(default_factory=Treated)
    backward: Treated = field(default_factory=Treated)
    plugs: tuple[Plug | None, Plug | None] = (None, None)
    is_cut: bool = False

    @property
    def is_myrinet(self) -> bool:
        return self.plugs != (None, None)


@dataclass(frozen=True, slots=True)
class Orders:
    """files: path -> text of the tables and traces that impairments name. log: where fates other than pass are written
    down, or empty. processes: among which the links are shared out. slowed: how many times Myrinet's hardware is."""

    seed: int
    links: tuple[Carried, ...] = ()
    files: Mapping[str, str] = field(default_factory=dict)
    log: str = ""
    processes: int = 1
    slowed: int = 1

    def share(self, number: int) -> Orders:
        """What the process of that number, from 0, is to do. A link stays with its process whatever others come and go."""
        return replace(self, links=tuple(link for link in self.links if self.process_of(link) == number))

    def process_of(self, link: Carried) -> int:
        """Myrinet's links all have one: a frame may stretch over any of them at once."""
        return crc32(_MYRINET if link.is_myrinet else link.name.encode()) % self.processes

    def processes_of(self) -> dict[str, int]:
        """The same by the names of all links."""
        return {link.name: self.process_of(link) for link in self.links}

    def to_json(self) -> str:
        return json.dumps(
            {
                "seed": self.seed,
                "links": [
                    {
                        "name": link.name,
                        "a": link.a,
                        "b": link.b,
                        "forward": _treated(link.forward),
                        "backward": _treated(link.backward),
                        **_plugged(link),
                    }
                    for link in self.links
                ],
                "files": dict(self.files),
                "log": self.log,
                "processes": self.processes,
                "slowed": self.slowed,
            },
            separators=(",", ":"),
        )

    @classmethod
    def from_json(cls, text: str) -> Orders:
        """The inverse; ValueError, KeyError or TypeError for what no `to_json` wrote."""
        data = json.loads(text)
        links = tuple(
            Carried(
                link["name"],
                link["a"],
                link["b"],
                _to_treated(link["forward"]),
                _to_treated(link["backward"]),
                _to_plugs(link.get("plugs", (None, None))),
                link.get("is_cut", False),
            )
            for link in data["links"]
        )
        return cls(data["seed"], links, data["files"], data["log"], data["processes"], data["slowed"])


def _plugged(link: Carried) -> dict[str, Any]:
    """What only Myrinet's links have."""
    if not link.is_myrinet:
        return {}
    return {"plugs": [plug and [plug.switch, plug.port] for plug in link.plugs], "is_cut": link.is_cut}


def _to_plugs(plugs: Any) -> tuple[Plug | None, Plug | None]:
    a, b = (Plug(*plug) if plug else None for plug in plugs)
    return a, b


def _treated(treated: Treated) -> dict[str, Any]:
    impairment = impairment_to_json(treated.impairment)
    return {"impairment": impairment, "rules": dict(treated.rules), "replay": treated.replay}


def _to_treated(data: Mapping[str, Any]) -> Treated:
    return Treated(impairment_from_json(data["impairment"]), data["rules"], data["replay"])


class Places:
    """Where a cluster's relay has its files: below the cluster's directory."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.orders = directory / "relay.json"

    def socket(self, number: int) -> Path:
        """Where the relay's process of that number listens."""
        return self.directory / f"relay.{number}"

    def report(self, number: int) -> Path:
        """Where it writes its report."""
        return self.directory / f"report.{number}"

    def read_orders(self) -> Orders | None:
        """What the relay is to do; None where there has never been one."""
        try:
            return Orders.from_json(self.orders.read_text())
        except FileNotFoundError:
            return None

    def read_report(self, number: int) -> dict[str, Any]:
        """What a process of the relay last said of itself. FileNotFoundError."""
        said: dict[str, Any] = json.loads(self.report(number).read_text())
        return said
