"""Orders of the relay: a file in the cluster's directory that lists the links to forward. The file outlives the relay.

If processors are available, a relay consists of several processes, each with a share of the links. Whoever changes the
orders writes all of them and then notifies the relay; a restarted relay process reads the orders of its predecessor.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import field, replace
from pathlib import Path
from typing import Any, Final
from zlib import crc32

from testbed.errors import UnreadableStateError, reason_of
from testbed.fabric.interface import SwitchPort
from testbed.json_text import LastDocument, check, loads
from testbed.kernel.filesystem import read_text, replace_file
from testbed.lazy_dataclass import dataclass
from testbed.spec.layout import BOTH, Impairment
from testbed.spec.layout_json import impairment_from_json, impairment_to_json

DIRECTIONS: Final = BOTH
_NO_IMPAIRMENT = Impairment()


@dataclass(frozen=True, slots=True)
class RelayedDirection:
    """Orders for one direction of a link. rules: texts of the injected rules, by stable names. replay: path of a log of
    fates that replaces random decisions, or empty."""

    impairment: Impairment = _NO_IMPAIRMENT
    rules: Mapping[str, str] = field(default_factory=dict)
    replay: str = ""


@dataclass(frozen=True, slots=True)
class RelayedLink:
    """A link that the relay forwards.

    a, b: interfaces at its ends in the wire namespace; frames of the forward direction arrive on a. forward, backward:
    orders for its directions. fabric: kind of its network if that is modelled, or empty. switch_ports: in a modelled
    network, the switch port at each end that has one; such an end has no interface. is_cut: whether the cable of a link
    of a modelled network is pulled. taps: interfaces at which the relay receives the frames that arrive on a and b;
    empty: a and b themselves. gso: whether the senders of the forward and the backward direction have GSO on.
    """

    name: str
    a: str
    b: str
    forward: RelayedDirection = field(default_factory=RelayedDirection)
    backward: RelayedDirection = field(default_factory=RelayedDirection)
    fabric: str = ""
    switch_ports: tuple[SwitchPort | None, SwitchPort | None] = (None, None)
    is_cut: bool = False
    taps: tuple[str, str] = ("", "")
    gso: tuple[bool, bool] = (False, False)

    @property
    def receive_interfaces(self) -> tuple[str, str]:
        """Interfaces at which the relay receives the frames of the forward and of the backward direction."""
        return self.taps[0] or self.a, self.taps[1] or self.b

    @property
    def mark(self) -> str:
        """Interface whose index marks the frames that the relay sends: the link's port at a switch. Empty unless exactly one
        end has a tap."""
        tapped = [end for tap, end in zip(self.receive_interfaces, (self.a, self.b), strict=True) if tap != end]
        return tapped[0] if len(tapped) == 1 else ""


@dataclass(frozen=True, slots=True)
class Orders:
    """The orders of a relay.

    seed: seed of random decisions. files: path -> text of the tables and traces that impairments name. log: path of the log
    of fates other than pass, or empty. processes: number of processes that share the links. slowed: factor by which modelled
    switches are slowed down. tables: tables of modelled switches (`fabric.interface.Table`), by switch.
    """

    seed: int
    links: tuple[RelayedLink, ...] = ()
    files: Mapping[str, str] = field(default_factory=dict)
    log: str = ""
    processes: int = 1
    slowed: int = 1
    tables: Mapping[str, Mapping[str, int]] = field(default_factory=dict)

    def share(self, number: int) -> Orders:
        """Return the orders of one process. number: number of the process, from 0. A link stays with its process when other
        links change."""
        return replace(self, links=tuple(link for link in self.links if self.process_of(link) == number))

    def process_of(self, link: RelayedLink) -> int:
        """Return the number of the process that forwards a link. One process forwards all links of modelled networks of one
        kind, since it runs their network."""
        return crc32((link.fabric or link.name).encode()) % self.processes

    def numbers(self) -> list[int]:
        """List the numbers of the processes that have links."""
        return sorted({self.process_of(link) for link in self.links})

    def processes_of(self) -> dict[str, int]:
        """Map link names to the numbers of their processes."""
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
                        "taps": list(link.taps),
                        "forward": _direction_to_json(link.forward),
                        "backward": _direction_to_json(link.backward),
                        **_modelled_to_json(link),
                        **({"gso": list(link.gso)} if any(link.gso) else {}),
                    }
                    for link in self.links
                ],
                "files": dict(self.files),
                "log": self.log,
                "processes": self.processes,
                "slowed": self.slowed,
                "tables": {switch: dict(table) for switch, table in self.tables.items()},
            },
            separators=(",", ":"),
        )

    @classmethod
    def from_json(cls, text: str) -> Orders:
        """Parse the output of `to_json`. Raises ValueError for anything else."""
        try:
            orders = cls._from_json(loads(text))
        except KeyError as error:
            raise ValueError(f"key {error} is missing") from None
        except (TypeError, AttributeError, IndexError) as error:
            raise ValueError(f"not the orders of a relay: {error}") from None
        check(orders, Orders)
        if orders.processes < 1:
            raise ValueError(f"processes must be 1 or more, got {orders.processes}")
        return orders

    @classmethod
    def _from_json(cls, data: Any) -> Orders:
        links = tuple(
            RelayedLink(
                link["name"],
                link["a"],
                link["b"],
                _direction_from_json(link["forward"]),
                _direction_from_json(link["backward"]),
                link.get("fabric", ""),
                _switch_ports_from_json(link.get("plugs", (None, None))),
                link.get("is_cut", False),
                _pair(link.get("taps", ("", ""))),
                _pair(link.get("gso", (False, False))),
            )
            for link in data["links"]
        )
        return cls(data["seed"], links, data["files"], data["log"], data["processes"], data["slowed"], data["tables"])


def _modelled_to_json(link: RelayedLink) -> dict[str, Any]:
    """Return the keys that only links of modelled networks have."""
    if not link.fabric:
        return {}
    return {
        "fabric": link.fabric,
        "plugs": [port and [port.switch, port.port] for port in link.switch_ports],
        "is_cut": link.is_cut,
    }


def _switch_ports_from_json(ports: Any) -> tuple[SwitchPort | None, SwitchPort | None]:
    a, b = (SwitchPort(*port) if port else None for port in ports)
    return a, b


def _pair(values: Any) -> tuple[Any, Any]:
    a, b = values
    return a, b


def _direction_to_json(relayed: RelayedDirection) -> dict[str, Any]:
    impairment = impairment_to_json(relayed.impairment)
    return {"impairment": impairment, "rules": dict(relayed.rules), "replay": relayed.replay}


def _direction_from_json(data: Mapping[str, Any]) -> RelayedDirection:
    return RelayedDirection(impairment_from_json(data["impairment"]), data["rules"], data["replay"])


class RelayPaths:
    """The paths of a relay's files, below the cluster's directory."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.orders = directory / "relay.json"

    def socket(self, number: int) -> Path:
        """Return the path of the socket on which a relay process listens. number: number of the process, from 0."""
        return self.directory / f"relay.{number}"

    def report(self, number: int) -> Path:
        """Return the path of the file to which a relay process writes its report."""
        return self.directory / f"report.{number}"

    def tallies(self, number: int) -> Path:
        """Return the path of the file with a relay process's rule counts, which its successor continues."""
        return self.directory / f"tallies.{number}"

    def read_orders(self) -> Orders | None:
        """Read the orders; None if there is no file. Raises UnreadableStateError for a damaged file."""
        try:
            return _documents.of(read_text(self.orders))
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            raise _unreadable(self.orders, error) from error

    def write_orders(self, orders: Orders) -> None:
        """Replace the file of orders atomically. Raises OSError."""
        text = orders.to_json()
        replace_file(self.orders, text)
        _documents.note(text, orders)

    def read_report(self, number: int) -> dict[str, Any]:
        """Read the last report of a relay process. Raises UnreadableStateError for an unreadable file."""
        path = self.report(number)
        try:
            report = loads(read_text(path))
        except (OSError, ValueError) as error:
            raise _unreadable(path, error) from error
        if not isinstance(report, dict):
            raise _unreadable(path, ValueError("not a JSON object"))
        return report


_documents: Final = LastDocument(Orders.from_json)


def _unreadable(path: Path, error: OSError | ValueError) -> UnreadableStateError:
    reason = reason_of(error) if isinstance(error, OSError) else str(error)
    return UnreadableStateError(
        f"{path} cannot be understood ({reason}): it is damaged; "
        f"'testbed down --name {path.parent.name}' removes the cluster"
    )
