"""The swarm's cases of AM-II: requests between more endpoints than frames, small settings, link faults, freed
endpoints, changed tags and restarted NICs.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from typing import Final

from testbed.controller.conformance.network_faults import (
    CUTS,
    FAULTS,
    MICROSECOND,
    MILLISECOND,
    Cut,
    draw_faults,
    draw_shape,
    layout_of,
    without_impairment,
)
from testbed.controller.conformance.trials import fewer, without_one
from testbed.engine.sources import Source, source
from testbed.spec.elements import Link, Node, Switch
from testbed.spec.layout import Impairment, Layout
from testbed.spec.model import Description
from testbed.spec.resolver import resolve

REQUESTS: Final = 100
BACKLOG: Final = 40 * MILLISECOND
"""Time to drain the queues after the faults in both directions: 30 full frames at 20 Mbit/s."""
CROSSBARS: Final = "crossbars"
"""Shape with Myrinet crossbars and a mapper on every NIC."""
MYRINET_FAULTS: Final = (*[kind for kind in FAULTS if kind not in ("reordering", "jitter", "congestion")], CUTS)
"""Kinds of faults on Myrinet, whose links keep the order of frames and have no queue."""

SHORT: Final = "short"
MEDIUM: Final = "medium"
BULK: Final = "bulk"
NO_REPLY: Final = "nothing"
"""No reply except the library's own."""
SIZES: Final = {
    SHORT: (0, 1, 3, 15),
    MEDIUM: (0, 1, 60, 400, 512, 1000),
    BULK: (0, 1, 400, 1400, 1500, 4097, 12_000),
    NO_REPLY: (0,),
}
"""Bytes; words for short messages."""
DEFECTS: Final = ("tag", "endpoint", "segment", "handler")
"""Defects of requests; each makes the request return."""


@dataclass(frozen=True, slots=True)
class Request:
    """Request between two endpoints. reply_form, reply_size: of the reply. defect: one of DEFECTS or empty."""

    source: int
    origin: int
    sink: int
    endpoint: int
    form: str
    size: int
    reply_form: str
    reply_size: int
    defect: str


@dataclass(frozen=True, slots=True)
class Case:
    """Random case of AM-II.

    endpoints: endpoints of each node; the last one is freed at the time `freed`, if that is above 0. settings: the
    protocol's. doorbell_cost: nanoseconds until a NIC sees its doorbell, 0 for NICs and hosts without costs. tag_change:
    number of messages after which an endpoint changes its tag; 0: never. slow: maximum ns that a program waits before it
    polls. restarts: time and NIC of each restart. links: impairment of each until the faults end.
    """

    seed: int
    shape: str
    nodes: int
    endpoints: int
    settings: tuple[tuple[str, int], ...]
    doorbell_cost: int
    tag_change: int
    slow: int
    freed: int
    requests: tuple[Request, ...]
    restarts: tuple[tuple[int, int], ...]
    links: tuple[Impairment, ...]
    cuts: tuple[Cut, ...]
    until: int

    @property
    def retry_time(self) -> int:
        """Nanoseconds of retransmissions until a peer is unreachable."""
        settings = dict(self.settings)
        timeout, longest = settings["timeout"], settings["longest_timeout"]
        return sum(min(timeout << number, longest) for number in range(settings["retries"]))

    @property
    def may_be_unreachable(self) -> bool:
        """Return whether a NIC may declare another one unreachable: faults outlast its retransmissions, the peer has
        restarted, or no route is known."""
        return self.retry_time < 2 * self.until + BACKLOG or bool(self.restarts) or self.shape == CROSSBARS

    def layout(self) -> Layout:
        """Return the layout with impairments, from which NICs learn whether links keep the order of frames."""
        unimpaired = layout_of_shape(self.shape, self.nodes)
        links = [
            replace(link, forward=impairment, backward=impairment)
            for link, impairment in zip(unimpaired.links, self.links, strict=True)
        ]
        return replace(unimpaired, links=tuple(links))


@cache
def layout_of_shape(shape: str, nodes: int) -> Layout:
    """Return the layout of a shape, without impairments."""
    if shape != CROSSBARS:
        return layout_of(shape, nodes)
    ends = [(f"n{number}", f"s{1 + number % 2}:{1 + number // 2}") for number in range(1, nodes + 1)]
    cluster = Description(
        name=CROSSBARS,
        nodes=[Node(name=f"n{number}") for number in range(1, nodes + 1)],
        switches=[Switch(name=name, kind="myrinet") for name in ("s1", "s2")],
        links=[Link(ends=pair) for pair in [*ends, ("s1:7", "s2:8"), ("s1:8", "s2:7")]],
    )
    return resolve(cluster)


def draw(seed: int) -> Case:
    """Draw the case of a seed."""
    rng = source(seed, "case of am2")
    on_myrinet = rng.random() < 0.06
    shape, nodes = (CROSSBARS, 2 + rng.below(5)) if on_myrinet else draw_shape(rng)
    links, cuts, faults_end = draw_faults(
        rng, layout_of_shape(shape, nodes), MYRINET_FAULTS if on_myrinet else (*FAULTS, CUTS)
    )
    endpoints = 2 + rng.below(3)
    settings = _settings(rng, endpoints)
    restarts = tuple([(rng.below(faults_end), rng.below(nodes)) for _ in range(rng.choice((0, 0, 0, 1, 3)))])
    case = Case(
        seed, shape, nodes, endpoints, tuple(settings.items()),
        doorbell_cost=rng.choice((0, 0, 0, 0, 0, 0, 0, 1, 10, 100)) * MICROSECOND,
        tag_change=rng.choice((0, 0, 5)), slow=rng.choice((0, 50, 500)) * MICROSECOND,
        freed=rng.choice((0, 0, 1)) * rng.below(faults_end), requests=(), restarts=restarts, links=links, cuts=cuts,
        until=faults_end,
    )  # fmt: skip
    # The sender of a lost reply is notified, unless the reply only returns a credit.
    reply_forms = (SHORT, SHORT, MEDIUM, BULK) if case.may_be_unreachable else (SHORT, SHORT, MEDIUM, BULK, NO_REPLY)
    requests = [_request(rng, case, reply_forms) for _ in range(REQUESTS + rng.below(20))]
    if source(seed, "hot spot of am2").random() < 0.15:  # more than a ring holds
        requests = [replace(request, sink=0, endpoint=0) if request.source else request for request in requests]
    return replace(case, requests=tuple(requests))


def _request(rng: Source, case: Case, reply_forms: tuple[str, ...]) -> Request:
    form, reply_form = rng.choice((SHORT, SHORT, MEDIUM, BULK)), rng.choice(reply_forms)
    defect = rng.choice(DEFECTS) if rng.random() < 0.05 else ""
    if defect == "segment":
        form = BULK
    origin, sender = rng.below(case.nodes), rng.below(case.endpoints)
    sink, endpoint = rng.below(case.nodes), rng.below(case.endpoints)
    if origin == sink and dict(case.settings)["frames"] == 1:
        endpoint = sender  # two endpoints with one frame are never resident together
    return Request(
        origin,
        sender,
        sink,
        endpoint,
        form,
        rng.choice(SIZES[form]),
        reply_form,
        rng.choice(SIZES[reply_form]),
        defect,
    )


def _settings(rng: Source, endpoints: int) -> dict[str, int]:
    timeout = rng.choice((200 * MICROSECOND, MILLISECOND, 5 * MILLISECOND))
    refusal_delay = rng.choice((100 * MICROSECOND, MILLISECOND))
    return {
        "channels": rng.choice((1, 2, 4, 32)),
        "sequences": rng.choice((2, 2, 1 << 16)),
        "scan": timeout // 5,
        "timeout": timeout,
        "longest_timeout": timeout * rng.choice((1, 4, 32)),
        "retries": rng.choice((3, 40, 40)),
        "refused": refusal_delay,
        "credits": rng.choice((1, 2, 4, 4)),
        "frames": 1 + rng.below(endpoints - 1),
        "attempts": rng.choice((0, 1, 8)),
        "attempt": rng.choice((0, 0, 1000)),
        "stay": 3 * max(refusal_delay, timeout // 5),  # a refused packet is retransmitted within this time
        "mappings": rng.choice((2, 1024)),
        "packet": rng.choice((512, 8192)),
    }


def reduced_cases(case: Case) -> Iterator[Case]:
    """Yield reduced cases, the largest reductions first."""
    for requests in fewer(case.requests):
        yield replace(case, requests=requests)
    for restarts in without_one(case.restarts):
        yield replace(case, restarts=restarts)
    for cuts in without_one(case.cuts):
        yield replace(case, cuts=cuts)
    for links in without_impairment(case.links):
        yield replace(case, links=links)
    for change in ({"doorbell_cost": 0}, {"tag_change": 0}, {"slow": 0}, {"freed": 0}):
        reduced = replace(case, **change)  # type: ignore[arg-type]  # the keys are a case's
        if reduced != case:
            yield reduced
