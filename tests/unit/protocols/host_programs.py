"""Host programs on NICs that are joined by lists: coroutines that await completions, and the exchange of their frames."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from typing import TypeVar

from testbed.engine.waitables import Awaited
from tests.unit.protocols.list_wires import Wires

T = TypeVar("T")

Program = Coroutine[object, None, T]
"""Coroutine of ``async def`` that awaits only completions, or objects that call back as they do."""


class StuckError(AssertionError):
    """No program can continue, or not within the granted rounds; the message lists what each waits for."""


def run(
    wires: Wires, *programs: Program[T], deliver: Callable[[], object] | None = None, rounds: int = 20_000
) -> list[T]:
    """Run programs until all have returned; return their results.

    In every round each ready program runs until it waits; then deliver() delivers the NICs' frames (all of them, unless
    a test says how). When no program is ready except to poll, and no frame was sent, the clock advances to the next
    deadline. A program's exception ends the run.
    """
    deliver = deliver or wires.exchange
    results: dict[int, T] = {}
    waits: dict[int, Awaited] = {}
    ready: deque[int] = deque(range(len(programs)))
    try:
        for _ in range(rounds):
            polling = []
            for index in [ready.popleft() for _ in range(len(ready))]:
                waits.pop(index, None)
                try:
                    awaited = programs[index].send(None)
                except StopIteration as stop:
                    results[index] = stop.value
                    continue
                assert hasattr(awaited, "add_callback"), f"program {index} awaits {awaited!r}"
                waits[index] = awaited
                if awaited.done:
                    polling.append(index)
                awaited.add_callback(lambda _, index=index: ready.append(index))
            if len(results) == len(programs):
                return [results[index] for index in range(len(programs))]
            if any(nic.sent for nic in wires.nics):
                deliver()
            elif len(polling) == len(ready) and not wires.tick() and not ready:
                break
        raise StuckError("\n".join(_waiting(wires, waits)))
    finally:
        for program in programs:
            program.close()


def _waiting(wires: Wires, waits: dict[int, Awaited]) -> Sequence[str]:
    return [
        *[f"program {index}: {awaited!r}" for index, awaited in waits.items()],
        *[
            f"node {number}: {sentence}"
            for number, agent in enumerate(wires.agents)
            for sentence in (*agent.host.pending_work(), *agent.firmware.pending_work())
        ],
    ]
