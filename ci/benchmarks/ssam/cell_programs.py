"""Host programs of SSAM: requests of 40 bytes, with their replies."""

import time
from functools import partial

from benchmarks.harness.host_programs import PING, PONG, Program, Quantiles, emp_ping, emp_pong, quantiles, warm_up
from protocols.ssam.host import Library, Reply
from testbed.runtime.nodes.run_orders import ProgramNode

DATA = bytes(range(40))
_ASK, _ANSWER, _END = 1, 2, 3


async def ssam_ping(library: Library, node: ProgramNode, *, count: int) -> Quantiles:
    samples, now, peer, used = [], time.monotonic_ns, node.numbers[PONG], 0
    answers: list[bytes] = []
    library.set_handler(_ANSWER, lambda _, data: answers.append(data))
    for number in range(-warm_up(count), count):
        if not number:
            used = time.process_time_ns()
        start = now()
        await library.request(peer, _ASK, DATA)
        while not answers:
            await library.wait()
            await library.poll()
        if number >= 0:
            samples.append(now() - start)
        if answers.pop() != DATA:
            raise AssertionError(f"answer {number} is another one")
    quantiles_found = quantiles(samples, time.process_time_ns() - used)
    await library.request(peer, _END)
    while library.pending_work():
        await library.wait()
        await library.poll()
    return quantiles_found


async def ssam_pong(library: Library, node: ProgramNode) -> None:  # noqa: ARG001
    """Reply until a request to end arrives, and its answer has left."""
    ended: list[bytes] = []
    library.set_handler(_ASK, lambda _, data: Reply(_ANSWER, data))
    library.set_handler(_END, lambda _, data: ended.append(data))
    while not ended:
        await library.wait()
        await library.poll()


def programs(kind: str, count: int) -> dict[str, Program]:
    """kind: "emp trip" or "ssam trip"."""
    results: dict[str, tuple[Program, Program]] = {
        "emp trip": (partial(emp_ping, count=count), partial(emp_pong, count=count)),
        "ssam trip": (partial(ssam_ping, count=count), ssam_pong),
    }
    ping, pong = results[kind]
    return {PING: ping, PONG: pong}
