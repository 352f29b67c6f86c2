"""Networks of random cases: shapes, impairments of links, and cuts of links."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache

from testbed.engine.sources import Source
from testbed.sim.simulation import Simulation
from testbed.spec.layout import Impairment, Layout
from testbed.spec.model import Description
from testbed.spec.resolver import resolve

MICROSECOND, MILLISECOND, SECOND = 1_000, 1_000_000, 1_000_000_000  # ns


@dataclass(frozen=True, slots=True)
class Cut:
    """A cut of a link, by its number. begin, end: virtual nanoseconds."""

    link: int
    begin: int
    end: int


# By kind of fault: a function that draws keys of a link's impairment. If a link has several kinds that set its delay, the
# last drawn replaces the others.
FAULTS: dict[str, Callable[[Source], dict[str, object]]] = {
    "loss": lambda rng: {"loss": rng.choice((0.01, 0.05, 0.3))},
    "bursts": lambda rng: {"gemodel": (0.02, rng.choice((0.1, 0.5)), 1.0, 0.0)},
    "corruption": lambda rng: {"corrupt": rng.choice((0.01, 0.2)), "corrupt_bits": rng.choice((1, 3))},
    "duplication": lambda rng: {"duplicate": rng.choice((0.02, 0.3))},
    "reordering": lambda rng: {
        "reorder": rng.choice((0.02, 0.3)),
        "delay": rng.choice((50, 2000)) * MICROSECOND,
    },
    "jitter": lambda rng: {"jitter": rng.choice((10, 40)) * MICROSECOND, "delay": 50 * MICROSECOND},
    "slowness": lambda rng: {"delay": rng.choice((8, 30)) * MILLISECOND},  # longer than most initial timeouts
    "congestion": lambda rng: {"rate": rng.choice((20, 200)) * 10**6, "queue_frames": rng.choice((4, 30))},
}
CUTS = "cuts"
REORDERING = "reordering"
KINDS = (*FAULTS, CUTS)
# By shape of the network: minimum and maximum number of nodes.
SHAPES: dict[str, tuple[int, int]] = {
    "back-to-back": (2, 2),
    "star": (2, 8),
    "line": (2, 5),
    "ring": (3, 6),
    "dumbbell": (4, 8),
}
# Impairment of a link without faults.
DELAY_ONLY = Impairment(delay=5 * MICROSECOND)


@cache
def layout_of(shape: str, nodes: int) -> Layout:
    """Return the layout of a shape, without impairments."""
    makers: dict[str, Callable[[], Description]] = {
        "back-to-back": Description.back_to_back,
        "star": lambda: Description.star(nodes),
        "line": lambda: Description.line(nodes),
        "ring": lambda: Description.ring(nodes),
        "dumbbell": lambda: Description.dumbbell(nodes // 2, nodes - nodes // 2),
    }
    return resolve(makers[shape]())


def draw_shape(rng: Source) -> tuple[str, int]:
    """Draw a shape and a number of nodes."""
    shape = rng.choice(list(SHAPES))
    low, high = SHAPES[shape]
    return shape, low + rng.below(high - low + 1)


def draw_faults(
    rng: Source, layout: Layout, kinds: Collection[str] = KINDS
) -> tuple[tuple[Impairment, ...], tuple[Cut, ...], int]:
    """Draw two to four kinds of faults, each of which affects a link with a certain probability. Return the impairment of
    each link, the cuts, and the time by which all cuts have ended, in virtual nanoseconds; impairments do not end. kinds:
    at least four, some of FAULTS and CUTS."""
    drawn = rng.sample(list(kinds), 2 + rng.below(3))
    until = rng.choice((2, 10, 50)) * MILLISECOND
    impairments = []
    for _ in layout.links:
        keys: dict[str, object] = {"delay": DELAY_ONLY.delay}
        for kind in drawn:
            if kind in FAULTS and rng.random() < 0.7:
                keys |= FAULTS[kind](rng)
        impairments.append(replace(DELAY_ONLY, **keys))  # type: ignore[arg-type]  # the keys are an impairment's
    cuts = []
    for number in range(len(layout.links)):
        if CUTS in drawn and rng.random() < 0.4:
            begin = rng.below(until)
            cuts.append(Cut(number, begin, begin + 1 + rng.below(until - begin)))
    return tuple(impairments), tuple(cuts), until


def without_impairment(links: tuple[Impairment, ...]) -> Iterator[tuple[Impairment, ...]]:
    """Yield the links' impairments with those of one link replaced by DELAY_ONLY, for each link that has others."""
    for index, impairment in enumerate(links):
        if impairment != DELAY_ONLY:
            yield (*links[:index], DELAY_ONLY, *links[index + 1 :])


def run_cuts(simulation: Simulation, names: Sequence[str], cuts: Iterable[Cut]) -> None:
    """Make the cuts at their times: run the simulation until the last has ended. names: names of links, by number."""
    for when, _, name, change in sorted(
        [(cut.begin, 0, names[cut.link], simulation.cut) for cut in cuts]
        + [(cut.end, 1, names[cut.link], simulation.restore) for cut in cuts],
        key=lambda entry: entry[:3],
    ):
        simulation.run_until(when)
        change(name)
