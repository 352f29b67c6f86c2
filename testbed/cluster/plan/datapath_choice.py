"""Datapath selection: validate the impairments of each impaired link, and choose its datapath."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path

from testbed import fabrics
from testbed.cluster.faults.injections import BOTH, DirectionName, InForce, Injection, in_force, is_down
from testbed.cluster.plan.link_services import LinkService
from testbed.cluster.plan.veth_wiring import all_free_ends, taps
from testbed.errors import NotFoundError, TestbedError, UnsupportedError, reason_of
from testbed.fabric.direction import LinkDirection
from testbed.fabric.interface import SwitchPort
from testbed.fates.flows import Classifier
from testbed.fates.records import Replay
from testbed.fates.rules import RuleSet
from testbed.fates.stage import FateOptions
from testbed.fields import known_fields
from testbed.kernel import capabilities, loss_classifier
from testbed.kernel.datapaths import Choice, choose
from testbed.kernel.filesystem import read_text
from testbed.runtime.logs import read_log
from testbed.runtime.relay.orders import RelayedDirection, RelayedLink
from testbed.spec.layout import ConfiguredDatapath, Impairment, Layout, Link, Tunnel
from testbed.spec.units import format_duration


class DatapathSelector:
    """Datapath selection for one cluster, link by link. For arguments and errors see `link_decisions.decide`.

    relayed: the links that the relay forwards. For other attributes see `link_decisions.Decisions`.
    """

    def __init__(
        self,
        layout: Layout,
        injected: tuple[Injection, ...],
        asked: ConfiguredDatapath,
        base: Path,
        known_texts: Mapping[str, str],
    ) -> None:
        self.link_services: dict[str, LinkService] = {}
        self.notes: dict[str, tuple[str, ...]] = {}
        self.relayed: list[RelayedLink] = []
        self.files: dict[str, str] = {}
        self._layout = layout
        self._injected = injected
        self._asked: ConfiguredDatapath = asked
        self._base = base
        self._known_texts = known_texts
        self._refusals: list[str] = []
        self._modelled = layout.simulated_switches()
        self._tunnels = layout.tunnels()
        self._ends: dict[str, tuple[str, str]] = {}
        # Most links of a cluster have equal impairments, so results are cached.
        self._gso: dict[tuple[object, ...], bool] = {}
        self._choices: dict[tuple[object, ...], Choice] = {}

    def choose(self, link: Link) -> None:
        """Choose the datapath of a link. Refusals are collected for `check_refusals`."""
        sides = [in_force(link, direction, self._injected) for direction in BOTH]
        down = is_down(link, self._injected)
        kind = link.model
        if not (down or any(side.complete for side in sides) or kind):
            return
        for side in sides:
            self.files.update(_read_texts(side, self._base, self._known_texts))
        try:
            if (tunnel := self._tunnels.get(link.name)) is not None:
                sides = [_without_underlay(side, tunnel) for side in sides]
            forward_gso, backward_gso = [self._carries_gso(link, *side) for side in zip(BOTH, sides, strict=True)]
            link_service, notes = self._link_service(link, sides, down=down)
        except UnsupportedError as error:
            self._refusals.append(f"  {link.name}: {str(error).removeprefix(f'{link.name}: ')}")
            return
        if link_service.datapath == "relay":
            gso = forward_gso, backward_gso
            link_service = replace(link_service, gso=gso)
            forward, backward = [RelayedDirection(side.impairment, side.rules, side.replay) for side in sides]
            self._ends = self._ends or all_free_ends(self._layout)
            a, b = self._ends[link.name]
            if kind is None:
                relayed = RelayedLink(link.name, a, b, forward, backward, taps=taps(a, b), gso=gso)
            else:
                ports = self._switch_ports(link)
                relayed = RelayedLink(link.name, a, b, forward, backward, kind.name, ports, is_cut=down)
            self.relayed.append(relayed)
        self.link_services[link.name] = link_service
        if notes:
            self.notes[link.name] = notes

    def check_refusals(self) -> None:
        """Raise UnsupportedError if no datapath supports one of the links; list all such links."""
        if not self._refusals:
            return
        lines = [f"{self._layout.name} cannot have its impairments:", *self._refusals]
        if self._asked in ("netem", "tc"):
            lines.append(
                f"  '--datapath {self._asked}' allows no other datapath: without it, 'testbed up' selects one for each link"
            )
        raise UnsupportedError("\n".join(lines))

    def _switch_ports(self, link: Link) -> tuple[SwitchPort | None, SwitchPort | None]:
        """Return the ports of modelled switches at a link's ends."""
        a, b = (
            SwitchPort(end.owner, int(end.port)) if end.owner in self._modelled else None for end in (link.a, link.b)
        )
        return a, b

    def _link_service(self, link: Link, sides: list[InForce], *, down: bool) -> tuple[LinkService, tuple[str, ...]]:
        kind = link.model
        forward, backward = [side.complete for side in sides]
        if kind and (only := self._asked if link.datapath == "auto" else link.datapath) not in ("auto", "relay"):
            raise UnsupportedError(
                f"the datapath {only!r} cannot carry this: links of kind {kind.name} are in the relay"
            )
        if link.datapath == "direct":
            raise UnsupportedError(
                'it is declared datapath = "direct": one pair of interfaces, with nothing between them that could be '
                "impaired or cut"
            )
        if not (forward or backward or kind):
            return LinkService(down=down), ()
        desired: ConfiguredDatapath = self._asked if link.datapath == "auto" else link.datapath  # type: ignore[assignment]  # checked
        if kind:
            desired = "relay"
        key = forward, backward, desired
        choice = self._choices.get(key)
        if choice is None:
            choice = self._choices[key] = choose(
                forward, backward, capabilities.probe_capabilities(), desired, _refusal
            )
        return LinkService(choice.datapath, forward, backward, down), choice.notes

    def _carries_gso(self, link: Link, direction: DirectionName, side: InForce) -> bool:
        key = side.impairment, tuple(side.rules.values()), side.replay, link.kind
        if key not in self._gso:
            self._gso[key] = carries_gso(self._layout, link, direction, side, self.files)
        return self._gso[key]


def _without_underlay(side: InForce, tunnel: Tunnel) -> InForce:
    """Reduce the delay by that of the underlay, which also delays the frames. Raises UnsupportedError if the underlay's is
    longer."""
    impairment = side.impairment
    if not (impairment.delay or impairment.jitter):
        return side
    if impairment.delay < tunnel.delay:
        raise UnsupportedError(
            f"a delay of {format_duration(impairment.delay)} is less than the {format_duration(tunnel.delay)} that the "
            f"network to machine {tunnel.machine} has"
        )
    return replace(side, impairment=replace(impairment, delay=impairment.delay - tunnel.delay))


def _refusal(impairment: Impairment) -> str:
    return loss_classifier.refusal(impairment, known_fields())


@cache
def _classifier() -> Classifier:
    """Return the classifier of all directions that are validated. No frame is classified by it."""
    return Classifier(known_fields())


def carries_gso(
    layout: Layout,
    link: Link,
    direction: DirectionName,
    side: InForce | RelayedDirection,
    files: Mapping[str, str],
) -> bool:
    """Whether the relay can forward GSO frames of a direction unsegmented. Modelled networks never can.

    Raises the model's errors for invalid impairments, so it validates them for all datapaths.
    """
    rules = RuleSet(known_fields(), [link.name for link in layout.links])
    for text in (*side.impairment.rules, *side.rules.values()):
        rules.add(0, text)
    if side.replay:
        rules.add(0, Replay(read_log(Path(side.replay))))
    options = FateOptions(layout.seed, rules=rules, classifier=_classifier(), files=files)
    if link.model:
        fabrics.fabric(link.kind).network().join(link.name, direction, side.impairment, options)
        return False
    return LinkDirection(link.name, direction, side.impairment, options).carries_gso and not side.replay


def _read_texts(side: InForce, base: Path, known_texts: Mapping[str, str]) -> dict[str, str]:
    """Read the files that an impairment names; return their texts by path. known_texts: of files that cannot be read."""
    texts = {}
    for path in (side.impairment.jitter_file, side.impairment.rate_trace):
        if path:
            try:
                texts[path] = read_text(base / path)
            except (OSError, UnicodeDecodeError) as error:
                if path in known_texts:
                    texts[path] = known_texts[path]
                    continue
                reason = reason_of(error) if isinstance(error, OSError) else f"{base / path} is not text"
                raise (NotFoundError if isinstance(error, FileNotFoundError) else TestbedError)(reason) from error
    return texts
