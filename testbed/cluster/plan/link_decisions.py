"""Derive each link's service and the relay's orders from declared and injected impairments."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import field
from pathlib import Path
from types import MappingProxyType

from testbed import fabrics
from testbed.cluster.faults.injections import Injection
from testbed.cluster.plan.link_services import LinkService
from testbed.lazy_dataclass import dataclass
from testbed.runtime.relay.orders import Orders
from testbed.spec.layout import ConfiguredDatapath, Layout


@dataclass(frozen=True, slots=True)
class Decisions:
    """Decisions on the links of a cluster.

    link_services: services of all links that are not direct and up. notes: link -> approximations of its datapath, and
    reasons why a preferred datapath was not chosen. orders: for the relay. files: path -> text of the tables and traces that
    impairments name.
    """

    link_services: Mapping[str, LinkService] = field(default_factory=dict)
    notes: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    orders: Orders = field(default_factory=lambda: Orders(0))
    files: Mapping[str, str] = field(default_factory=dict)


def decide(
    layout: Layout,
    injected: Iterable[Injection],
    asked: ConfiguredDatapath,
    base: Path,
    log: str = "",
    known_texts: Mapping[str, str] = MappingProxyType({}),
) -> Decisions:
    """Decide the datapath and the impairments of each link.

    asked: the datapath of links that do not specify one. base: the directory for relative paths of tables and traces.
    log: the file to which the relay writes the fates of frames on its links, or empty; other datapaths report none.
    known_texts: texts of tables and traces, by their paths in the impairments, for files that can no longer be read.

    Raises DescriptionError, RuleError and BrokenFileError for invalid impairments; NotFoundError or TestbedError for a table
    or trace that cannot be read; UnsupportedError lists all links that no datapath of this machine supports.
    """
    injected = tuple(injected)
    injected_links = {name for injection in injected for name in injection.links}
    impaired = [
        link for link in layout.links if link.name in injected_links or link.forward or link.backward or link.model
    ]
    if not impaired:
        return Decisions()
    from testbed.cluster.plan.datapath_choice import (
        DatapathSelector,  # imports code that a cluster without impairments does not need
    )

    selector = DatapathSelector(layout, injected, asked, base, known_texts)
    for link in impaired:
        selector.choose(link)
    selector.check_refusals()
    tables = fabrics.tables(layout)
    orders = Orders(layout.seed, tuple(selector.relayed), selector.files, log, slowed=layout.slowed, tables=tables)
    return Decisions(selector.link_services, selector.notes, orders, selector.files)
