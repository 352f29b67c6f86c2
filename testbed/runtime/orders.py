"""What the relay is to do: a file beside the cluster's state, which outlives the relay.

Whoever changes it writes it whole and then tells the relay; a relay that is started again finds what its predecessor had.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from testbed.spec.layout import Impairment
from testbed.spec.layout_json import impairment_from_json, impairment_to_json

_NOTHING = Impairment()


@dataclass(frozen=True, slots=True)
class Treated:
    """What one direction shall do. rules: injected ones, by a name that stays theirs. replay: the path of a log of fates
    that decides what the impairment leaves to no chance any more."""

    impairment: Impairment = _NOTHING
    rules: Mapping[str, str] = field(default_factory=dict)
    replay: str = ""


@dataclass(frozen=True, slots=True)
class Carried:
    """A link that the relay carries. a, b: its free ends in the wire namespace; forward comes in on a."""

    name: str
    a: str
    b: str
    forward: Treated = field(default_factory=Treated)
    backward: Treated = field(default_factory=Treated)


@dataclass(frozen=True, slots=True)
class Orders:
    """files: path -> text of the tables and traces that impairments name. log: where fates other than pass are written
    down, or empty."""

    seed: int
    links: tuple[Carried, ...] = ()
    files: Mapping[str, str] = field(default_factory=dict)
    log: str = ""

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
                    }
                    for link in self.links
                ],
                "files": dict(self.files),
                "log": self.log,
            },
            separators=(",", ":"),
        )

    @classmethod
    def from_json(cls, text: str) -> Orders:
        """The inverse; ValueError, KeyError or TypeError for what no `to_json` wrote."""
        data = json.loads(text)
        links = tuple(
            Carried(link["name"], link["a"], link["b"], _to_treated(link["forward"]), _to_treated(link["backward"]))
            for link in data["links"]
        )
        return cls(data["seed"], links, data["files"], data["log"])


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
        self.report = directory / "relay.report"
        self.socket = directory / "relay"

    def read_orders(self) -> Orders | None:
        """What the relay is to do; None where there has never been one."""
        try:
            return Orders.from_json(self.orders.read_text())
        except FileNotFoundError:
            return None

    def read_report(self) -> dict[str, Any]:
        """What the relay last said of itself. FileNotFoundError."""
        said: dict[str, Any] = json.loads(self.report.read_text())
        return said
