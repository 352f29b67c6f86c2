"""How each link of a cluster is carried: what is declared and injected, and the ladder of datapaths, come to treatments."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from testbed.cluster.injections import BOTH, InForce, Injection, in_force, is_down
from testbed.cluster.treatments import Treatment
from testbed.cluster.wiring import free_ends
from testbed.errors import NotFoundError, TestbedError, UnsupportedError, reason_of
from testbed.kernel.datapaths import Abilities, Asked, choose
from testbed.runtime.logs import read_log
from testbed.runtime.orders import Carried, Orders, Treated
from testbed.spec.layout import Layout, Link
from testbed.wire.direction import Direction
from testbed.wire.headers import standard_fields
from testbed.wire.rules import RuleSet


@dataclass(frozen=True, slots=True)
class Decisions:
    """treatments: of every link that is not direct and up. notes: link -> what is approximate there, or why a datapath
    before it in the ladder was not taken. orders: for the relay. files: the texts that impairments name."""

    treatments: Mapping[str, Treatment] = field(default_factory=dict)
    notes: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    orders: Orders = field(default_factory=lambda: Orders(0))
    files: Mapping[str, str] = field(default_factory=dict)


def decide(layout: Layout, injected: Iterable[Injection], asked: Asked, base: Path, log: str = "") -> Decisions:
    """asked: the datapath of links that do not say theirs. base: where relative paths of tables and traces begin. log: the
    file to which the relay writes fates, or empty; then it is the relay that carries, nobody else writes them down.

    DescriptionError, RuleError and BrokenFileError for what is wrong in what is wanted; UnsupportedError with every link
    that cannot be carried so here.
    """
    injected = tuple(injected)
    touched = {name for injection in injected for name in injection.links}
    treatments: dict[str, Treatment] = {}
    notes: dict[str, tuple[str, ...]] = {}
    carried: list[Carried] = []
    files: dict[str, str] = {}
    refusals: list[str] = []
    for link in layout.links:
        if not (link.name in touched or link.forward or link.backward):
            continue
        sides = [in_force(link, direction, injected) for direction in BOTH]
        down = is_down(link, injected)
        if not (down or any(side.whole for side in sides)):
            continue
        for side in sides:
            files.update(_texts(side, base))
        for side, direction in zip(sides, BOTH, strict=True):
            _try(layout, link, direction, side, files)
        try:
            treatment, said = _choose(link, sides, "relay" if log and asked == "auto" else asked, down=down)
        except UnsupportedError as error:
            refusals.append(f"  {link.name}: {error}")
            continue
        treatments[link.name] = treatment
        if said:
            notes[link.name] = said
        if treatment.datapath == "relay":
            forward, backward = [Treated(side.impairment, side.rules, side.replay) for side in sides]
            carried.append(Carried(link.name, *free_ends(layout, link.name), forward, backward))
    if refusals:
        raise UnsupportedError("\n".join([f"{layout.name} cannot have its impairments:", *refusals]))
    return Decisions(treatments, notes, Orders(layout.seed, tuple(carried), files, log), files)


def _choose(link: Link, sides: list[InForce], asked: Asked, *, down: bool) -> tuple[Treatment, tuple[str, ...]]:
    forward, backward = [side.whole for side in sides]
    if link.datapath == "direct":
        raise UnsupportedError(
            'it is declared datapath = "direct": one pair of interfaces, with nothing between them that could be '
            "impaired or cut"
        )
    if not (forward or backward):
        return Treatment(down=down), ()
    from testbed.kernel.loss_classifier import refusal

    wish: Asked = asked if link.datapath == "auto" else link.datapath  # type: ignore[assignment]  # spec has checked it
    choice = choose(forward, backward, _abilities(), wish, refusal)
    return Treatment(choice.datapath, forward, backward, down), choice.notes


@cache
def _abilities() -> Abilities:
    """What this machine can do; found out by trying, once, and only where something is to be carried."""
    from testbed.kernel import abilities, loss_classifier

    return abilities.probe(loss_classifier.probe)


def _try(layout: Layout, link: Link, direction: str, side: InForce, files: Mapping[str, str]) -> None:
    """Raises what the model would: whoever carries the direction, what is asked of it must make sense."""
    rules = RuleSet(standard_fields(), [other.name for other in layout.links])
    for text in (*side.impairment.rules, *side.rules.values()):
        rules.add(0, text)
    if side.replay:
        read_log(Path(side.replay))
    Direction(link.name, "forward" if direction == "forward" else "backward", side.impairment,
              seed=layout.seed, rules=rules, files=files)  # fmt: skip


def _texts(side: InForce, base: Path) -> dict[str, str]:
    """The files that an impairment names, by the names that it gives them."""
    found = {}
    for path in (side.impairment.jitter_file, side.impairment.rate_trace):
        if path:
            try:
                found[path] = (base / path).read_text()
            except (OSError, UnicodeDecodeError) as error:
                reason = reason_of(error) if isinstance(error, OSError) else f"{base / path} is not text"
                raise (NotFoundError if isinstance(error, FileNotFoundError) else TestbedError)(reason) from error
    return found
