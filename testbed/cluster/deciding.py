"""How each link of a cluster is carried: what is declared and injected comes to treatments and to orders for the relay."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

from testbed.cluster.injections import Injection
from testbed.cluster.treatments import Treatment
from testbed.runtime.orders import Orders
from testbed.spec.layout import Layout

if TYPE_CHECKING:
    from testbed.kernel.datapaths import Asked


@dataclass(frozen=True, slots=True)
class Decisions:
    """treatments: of every link that is not direct and up. notes: link -> what is approximate there, or why a datapath
    before it in the ladder was not taken. orders: for the relay. files: the texts that impairments name."""

    treatments: Mapping[str, Treatment] = field(default_factory=dict)
    notes: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    orders: Orders = field(default_factory=lambda: Orders(0))
    files: Mapping[str, str] = field(default_factory=dict)


def decide(
    layout: Layout,
    injected: Iterable[Injection],
    asked: Asked,
    base: Path,
    log: str = "",
    known: Mapping[str, str] = MappingProxyType({}),
) -> Decisions:
    """asked: the datapath of links that do not say theirs. base: where relative paths of tables and traces begin. log:
    the file to which the relay writes the fates of frames on links that it carries, or empty; nobody else tells any.
    known: texts of files, by the names that impairments give them, for those that are gone since they were last read.

    DescriptionError, RuleError and BrokenFileError for what is wrong in what is wanted; UnsupportedError with every link
    that cannot be carried so here.
    """
    injected = tuple(injected)
    touched = {name for injection in injected for name in injection.links}
    crossbars = layout.crossbars()
    concerned = [
        link
        for link in layout.links
        if link.name in touched or link.forward or link.backward or crossbars & {link.a.owner, link.b.owner}
    ]
    if not concerned:
        return Decisions()
    from testbed.cluster.choosing import Chooser  # with all that a cluster without impairments does not need

    chooser = Chooser(layout, injected, asked, base, known)
    for link in concerned:
        chooser.choose(link)
    chooser.refuse()
    orders = Orders(layout.seed, tuple(chooser.carried), chooser.files, log, slowed=layout.slowed)
    return Decisions(chooser.treatments, chooser.notes, orders, chooser.files)
