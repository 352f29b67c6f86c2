"""Exchanges of active messages between two nodes for the exhaustive schedules, with their checks."""

from __future__ import annotations

from typing import Final

from protocols.am2.codec import KIND_NACK, REASON_RESTARTED
from protocols.am2.plug import plug
from protocols.am2.settings import Settings
from protocols.am2.transport import build_answer, frame_prefix
from testbed.controller.conformance.network_faults import DELAY_ONLY, MICROSECOND, MILLISECOND, SECOND
from testbed.controller.conformance.trials import Violation
from testbed.sim.simulation import Simulation
from tests.sim.am2_swarm import PROTOCOL_ERRORS, Run
from tests.sim.am2_swarm_cases import BULK, MEDIUM, NO_REPLY, SHORT, Case, Request
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
        0, "back-to-back", 2, endpoints, tuple(_SETTINGS.items()), doorbell_cost=0, tag_change=0, slow=0, freed=0,
        requests=requests, restarts=(), links=(DELAY_ONLY,), cuts=(), until=0,
    )  # fmt: skip


def _request(
    source: int, form: str, size: int, reply_form: str = SHORT, endpoint: int = 0, defect: str = ""
) -> Request:
    return Request(
        source, endpoint, 1 - source, endpoint, form, size, reply_form, 0 if reply_form != MEDIUM else 60, defect
    )


CASES: Final = {
    "short": _case(_request(0, SHORT, 4)),
    "medium": _case(_request(0, MEDIUM, 400, MEDIUM)),
    "bulk": _case(_request(0, BULK, 3 * PACKET - PACKET // 2)),
    "silent": _case(_request(0, SHORT, 4, NO_REPLY), _request(0, SHORT, 4, NO_REPLY)),
    "two": _case(_request(0, SHORT, 4), _request(0, BULK, 2 * PACKET)),
    "each": _case(_request(0, SHORT, 4), _request(1, MEDIUM, 60)),
    "paged": _case(_request(0, SHORT, 4), _request(0, SHORT, 4, endpoint=1), endpoints=2),
    "wrong": _case(_request(0, SHORT, 4, defect="tag"), _request(0, BULK, 2 * PACKET, defect="segment")),
}
"""Exchanges by name. No endpoint is resident at the start; "paged": two endpoints per node share one frame."""
UNACQUAINTED: Final = {"short", "each"}
"""Exchanges whose nodes do not know each other's incarnations. In the others they do; otherwise the introduction would use
up most of a schedule's fates."""


class ActiveMessageExchange:
    """An exchange of active messages for `exhaustive`."""

    # A lost message is retransmitted after at most the longest time-out and a scan. An endpoint that shares a frame may have
    # to wait for the other one at both ends of the request and of its reply.
    bound = 2 * (_SETTINGS["longest_timeout"] + _SETTINGS["scan"]) + 8 * _SETTINGS["stay"]

    def __init__(self, case: Case, *, are_introduced: bool) -> None:
        self._case = case
        self._are_introduced = are_introduced
        self._ledger = Ledger(case)
        self._run: Run | None = None
        self.plug = plug(Settings(**dict(case.settings)), on_delivery=self._ledger.on_delivery)

    def begin(self, simulation: Simulation) -> None:
        if self._are_introduced:
            introduce(simulation)
        self._run = Run(self._case, simulation, self._ledger)

    def run(self, simulation: Simulation) -> None:
        assert self._run is not None
        try:
            self._run.run_until_done(20 * MICROSECOND, TIMEOUT)
        except PROTOCOL_ERRORS as error:
            if isinstance(error, Violation):
                raise
            raise Violation(f"at {simulation.now()} ns: {type(error).__name__}: {error}") from error

    def check(self, simulation: Simulation) -> None:  # noqa: ARG002
        assert self._run is not None
        if unfinished := self._run.pending():
            raise Violation("not finished although all requests have ended: " + "; ".join(unfinished))
        self._ledger.check()


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
