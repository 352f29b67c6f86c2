"""The relay: one process forwards the frames of many links."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from testbed import fabrics
from testbed.engine.loop import Loop
from testbed.fabric.direction import LinkDirection
from testbed.fates.fate_counters import Tallies
from testbed.fates.flows import Classifier
from testbed.fates.header_fields import Fields
from testbed.fates.records import Record
from testbed.fates.rules import RuleSet
from testbed.fates.stage import FateOptions
from testbed.kernel.packet_socket import Arena
from testbed.runtime.background_calls import BackgroundCalls
from testbed.runtime.relay.forwarded_link import LinkOptions
from testbed.runtime.relay.link_forwarder import LinkForwarder
from testbed.runtime.relay.orders import DIRECTIONS, Orders, RelayedDirection, RelayedLink
from testbed.runtime.relay.relay_network import ModelledLink, NetworkDriver

AnyLink = LinkForwarder | ModelledLink


class Relay:
    """All links that one process forwards."""

    def __init__(self, loop: Loop, fields: Fields, tallies: Tallies | None = None) -> None:
        """fields: header fields that rules can name. tallies: store of the rules' counts; None: they are kept in memory
        only."""
        self.links: dict[str, AnyLink] = {}
        self._drivers: dict[str, NetworkDriver] = {}  # of modelled networks, by fabric
        self._loop = loop
        self._fields = fields
        self._classifier = Classifier(fields)
        self._tallies = tallies
        self._arena = Arena()
        self._idle_rules: dict[str, None] = {}  # an ordered set of sentences about rules of released links
        self._background = BackgroundCalls(loop)

    def load(self, orders: Orders, log: Callable[[Record], object] | None = None) -> dict[str, int]:
        """Apply the orders: add and change links, and release those that are not in the orders.

        Returns the number of frames delivered early for each released link. Invalid orders raise DescriptionError,
        BrokenFileError or RuleError before anything changes. A missing interface raises OSError, possibly after some links
        have changed.
        """
        links_by_name = {link.name: link for link in orders.links}
        for link in orders.links:
            present = self.links.get(link.name)
            if present is None or not present.has_orders(link, orders.seed, orders.files):
                self._check(link, orders)
        removed = [name for name in self.links if name not in links_by_name]
        early = {name: self._close_link(self.links.pop(name)) for name in removed}
        for name, link in links_by_name.items():
            present = self.links.get(name)
            is_kept = present is not None and present.seed == orders.seed and _keeps_sockets(present.link, link)
            if present is not None and is_kept and present.is_current():
                present.change(link, orders.files)
                continue
            if present is not None:
                early[name] = self._close_link(self.links.pop(name))
            self.links[name] = self._add_link(link, orders, log)
        for fabric, driver in self._drivers.items():
            links = [link for link in orders.links if link.fabric == fabric]
            ports = [port for link in links for port in link.switch_ports if port is not None]
            driver.network.set_switches({port.switch: orders.tables.get(port.switch, {}) for port in ports})
        return early

    def _check(self, link: RelayedLink, orders: Orders) -> None:
        """Raise the errors that the link's directions would raise when they are made."""
        for name in DIRECTIONS:
            relayed: RelayedDirection = getattr(link, name)
            rules = RuleSet(self._fields)
            options = FateOptions(orders.seed, rules=rules, classifier=self._classifier, files=orders.files)
            if link.fabric:
                fabrics.fabric(link.fabric).network().join(link.name, name, relayed.impairment, options)
            else:
                LinkDirection(link.name, name, relayed.impairment, options)
            for text in relayed.rules.values():
                rules.add(0, text)

    def _add_link(self, link: RelayedLink, orders: Orders, log: Callable[[Record], object] | None) -> AnyLink:
        """Start to forward a link."""
        options = LinkOptions(
            self._loop, self._arena, self._fields, orders.seed, orders.files, log, self._tallies, self._classifier
        )
        if not link.fabric:
            return LinkForwarder(link, options)
        driver = self._drivers.get(link.fabric)
        if driver is None:
            network = fabrics.fabric(link.fabric).network(orders.slowed)
            driver = self._drivers[link.fabric] = NetworkDriver(self._loop, network)
        return ModelledLink(link, driver, options)

    def pass_through(self, names: Sequence[str]) -> dict[str, int]:
        """Stop impairing these links until orders are loaded; return link -> number of frames delivered early.

        Unknown links are ignored; links of modelled networks do not change.
        """
        early = {name: self.links[name].pass_through() for name in names if name in self.links}
        return {name: count for name, count in early.items() if count is not None}

    def release(self, names: Sequence[str], on_released: Callable[[dict[str, int]], object]) -> None:
        """Stop forwarding these links, whose frames already take another path. Unknown links are ignored.

        Once all frames that the links' sockets have received are sent, the loop calls `on_released` with link -> number of
        frames delivered early.
        """
        released = {name: link for name in names if (link := self.links.pop(name, None)) is not None}
        sockets = [packet_socket for link in released.values() for packet_socket in link.sockets().values()]

        def close_links() -> None:
            on_released({name: self._close_link(link) for name, link in released.items()})

        self._background.run([packet_socket.stop_receiving for packet_socket in sockets], close_links)

    def _close_link(self, link: AnyLink) -> int:
        """Stop forwarding a link; frames that arrive later are lost. Return how many frames were delivered early."""
        for direction in link.directions.values():
            self._idle_rules.update(dict.fromkeys(direction.injected.idle_rules()))
        early = link.release()
        self._background.run([packet_socket.close for packet_socket in link.sockets().values()], lambda: None)
        return early

    def switch_counters(self) -> dict[str, dict[str, int]]:
        """Return the counters of each modelled switch: switch -> cause -> number of frames."""
        networks = [driver.network for driver in self._drivers.values()]
        return {name: dict(counters) for network in networks for name, counters in network.switch_counters.items()}

    def idle_rules(self) -> list[str]:
        """Return a sentence for each rule that has never decided a fate, including lifted rules and rules of released
        links."""
        present = [link.directions[name].injected.idle_rules() for link in self.links.values() for name in DIRECTIONS]
        return [*self._idle_rules, *(sentence for sentences in present for sentence in sentences)]


def _keeps_sockets(before: RelayedLink, after: RelayedLink) -> bool:
    """Whether a changed link keeps its sockets and counters. A new replay starts with a link's first frame, so that it needs
    new ones."""
    old, new = (
        (link.a, link.b, link.taps, link.fabric, link.switch_ports, link.forward.replay, link.backward.replay)
        for link in (before, after)
    )
    return old == new
