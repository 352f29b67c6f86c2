"""Exchanges of active messages between two nodes under every schedule, with their checks."""

from __future__ import annotations

from typing import Final

from protocols.am2.codec import KIND_NACK, REASON_RESTARTED
from protocols.am2.plug import plug
from protocols.am2.settings import Settings
from protocols.am2.transport import build_answer, frame_prefix
from testbed.controller.conformance.network_faults import DELAY_ONLY, MICROSECOND, MILLISECOND, SECOND
from testbed.controller.conformance.trials import Violation
from testbed.sim.simulation import Simulation
from tests.sim.am2_swarm import MISTAKES, Run
from tests.sim.am2_swarm_cases import BULK, MEDIUM, NOTHING, SHORT, Case, Request
from tests.sim.am2_swarm_ledger import Ledger

TIMEOUT: Final = 2 * SECOND
"""Virtual time after which an exchange counts as stalled."""
PACKET: Final = 512
_SETTINGS: Final = {
    "channels": 2, "sequences": 1 << 16, "scan": MILLISECOND // 5, "timeout": MILLISECOND,
    "longest_timeout": 4 * MILLISECOND, "retries": 40, "refused": MILLISECOND // 5, "credits": 2, "frames": 1,
    "stay": MILLISECOND, "packet": PACKET,
}  # fmt: skip


def _case(*requests: Request, endpoints: int = 1) -> Case:
    return Case(
        0, "back-to-back", 2, endpoints, tuple(_SETTINGS.items()), priced=0, changing=0, slow=0, freed=0,
        requests=requests, restarts=(), links=(DELAY_ONLY,), cuts=(), until=0,
    )  # fmt: skip


def _request(
    source: int, form: str, size: int, answer_form: str = SHORT, endpoint: int = 0, mistake: str = ""
) -> Request:
    return Request(
        source, endpoint, 1 - source, endpoint, form, size, answer_form, 0 if answer_form != MEDIUM else 60, mistake
    )


CASES: Final = {
    "short": _case(_request(0, SHORT, 4)),
    "medium": _case(_request(0, MEDIUM, 400, MEDIUM)),
    "bulk": _case(_request(0, BULK, 3 * PACKET - PACKET // 2)),
    "silent": _case(_request(0, SHORT, 4, NOTHING), _request(0, SHORT, 4, NOTHING)),
    "two": _case(_request(0, SHORT, 4), _request(0, BULK, 2 * PACKET)),
    "each": _case(_request(0, SHORT, 4), _request(1, MEDIUM, 60)),
    "paged": _case(_request(0, SHORT, 4), _request(0, SHORT, 4, endpoint=1), endpoints=2),
    "wrong": _case(_request(0, SHORT, 4, mistake="tag"), _request(0, BULK, 2 * PACKET, mistake="segment")),
}
"""By name. At the beginning no endpoint is in its NIC; "paged": two of each node take turns in its one frame."""
STRANGERS: Final = {"short", "each"}
"""Exchanges before which the nodes have not heard of each other. Before the others they have: else few fates were left for
what comes behind that."""


class Active:
    """An exchange of active messages: a stage of `exhaustive`."""

    # One that was lost comes again after a longest time-out and a scan. An endpoint that pages takes turns with another one,
    # and may have to wait for it, for each end of the request and of its reply.
    bound = 2 * (_SETTINGS["longest_timeout"] + _SETTINGS["scan"]) + 8 * _SETTINGS["stay"]

    def __init__(self, case: Case, *, have_met: bool) -> None:
        self._case = case
        self._have_met = have_met
        self._world = Ledger(case)
        self._run: Run | None = None
        self.plug = plug(Settings(**dict(case.settings)), on_delivery=self._world.on_delivery)

    def begin(self, simulation: Simulation) -> None:
        if self._have_met:
            introduce(simulation)
        self._run = Run(self._case, simulation, self._world)

    def run(self, simulation: Simulation) -> None:
        assert self._run is not None
        try:
            self._run.until_all_is_over(20 * MICROSECOND, TIMEOUT)
        except MISTAKES as error:
            if isinstance(error, Violation):
                raise
            raise Violation(f"at {simulation.now()} ns: {type(error).__name__}: {error}") from error

    def check(self, simulation: Simulation) -> None:  # noqa: ARG002
        assert self._run is not None
        if unfinished := self._run.left():
            raise Violation("it was over, and is not: " + "; ".join(unfinished))
        self._world.check()


def introduce(simulation: Simulation) -> None:
    """Let every node learn the incarnations of all others."""
    for sender in simulation.nodes.values():
        for receiver in simulation.nodes.values():
            if sender is not receiver:
                source, destination = sender.adapter, receiver.adapter
                prefix = frame_prefix(
                    destination.address, source.address, KIND_NACK, REASON_RESTARTED, source.number, destination.number,
                    source.incarnation, destination.incarnation,
                )  # fmt: skip
                receiver.agent.firmware.receive(simulation.now(), build_answer(prefix, 0, 0, 0, 0, b""))
