"""Choosing who carries each impaired link, after trying whether what is asked of it makes sense."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from testbed.cluster.injections import BOTH, DirectionName, InForce, Injection, in_force, is_down
from testbed.cluster.treatments import Treatment
from testbed.cluster.wiring import all_free_ends
from testbed.errors import NotFoundError, TestbedError, UnsupportedError, reason_of
from testbed.fields import known_fields
from testbed.kernel import abilities, loss_classifier
from testbed.kernel.datapaths import Asked, Choice, choose
from testbed.runtime.logs import read_log
from testbed.runtime.orders import Carried, Plug, Treated
from testbed.spec.layout import Impairment, Layout, Link
from testbed.wire.direction import Direction
from testbed.wire.myrinet.channel import Channel
from testbed.wire.rules import RuleSet


class Chooser:
    """The choices for one cluster, link by link; see `deciding.decide` for the arguments and what is raised."""

    def __init__(
        self, layout: Layout, injected: tuple[Injection, ...], asked: Asked, base: Path, known: Mapping[str, str]
    ) -> None:
        self.treatments: dict[str, Treatment] = {}
        self.notes: dict[str, tuple[str, ...]] = {}
        self.carried: list[Carried] = []
        self.files: dict[str, str] = {}
        self._layout = layout
        self._injected = injected
        self._asked: Asked = asked
        self._base = base
        self._known = known
        self._refusals: list[str] = []
        self._crossbars = layout.crossbars()
        self._ends: dict[str, tuple[str, str]] = {}
        # Most links of a cluster are alike: what holds for one is found out once.
        self._pieces: dict[tuple[object, ...], bool] = {}
        self._choices: dict[tuple[object, ...], Choice] = {}

    def choose(self, link: Link) -> None:
        sides = [in_force(link, direction, self._injected) for direction in BOTH]
        down = is_down(link, self._injected)
        plugs = self._plugs(link)
        if not (down or any(side.whole for side in sides) or any(plugs)):
            return
        for side in sides:
            self.files.update(_texts(side, self._base, self._known))
        try:
            pieces = [self._carries_pieces(link, *side) for side in zip(BOTH, sides, strict=True)]
            treatment, said = self._treat(link, sides, down=down, myrinet=any(plugs))
        except UnsupportedError as error:
            self._refusals.append(f"  {link.name}: {str(error).removeprefix(f'{link.name}: ')}")
            return
        if treatment.datapath == "relay":
            treatment = replace(treatment, pieces=(pieces[0], pieces[1]))
            treated = [Treated(side.impairment, side.rules, side.replay) for side in sides]
            self._ends = self._ends or all_free_ends(self._layout)
            a, b = self._ends[link.name]
            cut = down and any(plugs)
            self.carried.append(Carried(link.name, a, b, treated[0], treated[1], plugs, cut))
        self.treatments[link.name] = treatment
        if said:
            self.notes[link.name] = said

    def refuse(self) -> None:
        """UnsupportedError if a link cannot be carried, with every one that cannot."""
        if self._refusals:
            raise UnsupportedError("\n".join([f"{self._layout.name} cannot have its impairments:", *self._refusals]))

    def _plugs(self, link: Link) -> tuple[Plug | None, Plug | None]:
        """The ports of Myrinet's switches at a link's ends."""
        a, b = (Plug(end.owner, int(end.port)) if end.owner in self._crossbars else None for end in (link.a, link.b))
        return a, b

    def _treat(
        self, link: Link, sides: list[InForce], *, down: bool, myrinet: bool
    ) -> tuple[Treatment, tuple[str, ...]]:
        forward, backward = [side.whole for side in sides]
        if myrinet and (only := self._asked if link.datapath == "auto" else link.datapath) not in ("auto", "relay"):
            raise UnsupportedError(
                f"the datapath {only!r} cannot carry this: Myrinet's switches, with their back-pressure, are in the relay"
            )
        if link.datapath == "direct":
            raise UnsupportedError(
                'it is declared datapath = "direct": one pair of interfaces, with nothing between them that could be '
                "impaired or cut"
            )
        if not (forward or backward or myrinet):
            return Treatment(down=down), ()
        wish: Asked = self._asked if link.datapath == "auto" else link.datapath  # type: ignore[assignment]  # checked
        if myrinet:
            wish = "relay"
        asked = forward, backward, wish
        choice = self._choices.get(asked)
        if choice is None:
            choice = self._choices[asked] = choose(forward, backward, abilities.abilities(), wish, _refusal)
        return Treatment(choice.datapath, forward, backward, down), choice.notes

    def _carries_pieces(self, link: Link, direction: DirectionName, side: InForce) -> bool:
        myrinet = any(self._plugs(link))
        asked = side.impairment, tuple(side.rules.values()), side.replay, myrinet
        found = self._pieces.get(asked)
        if found is None:
            if myrinet:
                check_channel(self._layout, link, direction, side, self.files)
                found = False
            else:
                found = carries_pieces(self._layout, link, direction, side, self.files)
            self._pieces[asked] = found
        return found


def _refusal(impairment: Impairment) -> str:
    return loss_classifier.refusal(impairment, known_fields())


def carries_pieces(
    layout: Layout, link: Link, direction: str, side: InForce | Treated, files: Mapping[str, str]
) -> bool:
    """Whether the relay would pass on pieces of frames. Raises what the model would: whoever carries the direction, what is
    asked of it must make sense."""
    return _model(Direction, layout, link, direction, side, files).carries_pieces and not side.replay


def check_channel(
    layout: Layout, link: Link, direction: str, side: InForce | Treated, files: Mapping[str, str]
) -> None:
    """Raises what the model of a Myrinet link's direction would."""
    _model(Channel, layout, link, direction, side, files)


def _model(
    kind: type[Direction], layout: Layout, link: Link, direction: str, side: InForce | Treated, files: Mapping[str, str]
) -> Direction:
    rules = RuleSet(known_fields(), [other.name for other in layout.links])
    for text in (*side.impairment.rules, *side.rules.values()):
        rules.add(0, text)
    if side.replay:
        read_log(Path(side.replay))
    name: DirectionName = "forward" if direction == "forward" else "backward"
    return kind(link.name, name, side.impairment, seed=layout.seed, rules=rules, files=files)


def _texts(side: InForce, base: Path, known: Mapping[str, str]) -> dict[str, str]:
    """The files that an impairment names, by the names that it gives them."""
    found = {}
    for path in (side.impairment.jitter_file, side.impairment.rate_trace):
        if path:
            try:
                found[path] = (base / path).read_text()
            except (OSError, UnicodeDecodeError) as error:
                if path in known:
                    found[path] = known[path]
                    continue
                reason = reason_of(error) if isinstance(error, OSError) else f"{base / path} is not text"
                raise (NotFoundError if isinstance(error, FileNotFoundError) else TestbedError)(reason) from error
    return found
