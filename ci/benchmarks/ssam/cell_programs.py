"""Host programs of SSAM: requests of 40 bytes, with their replies."""

import time
from functools import partial

from benchmarks.harness.host_programs import PING, PONG, Program, Quantiles, emp_ping, emp_pong, quantiles, warm_up
from protocols.ssam.host import Library, Reply
from testbed.runtime.nodes.run_orders import ProgramNode

DATA = bytes(range(40))
_REQUEST, _REPLY, _END = 1, 2, 3


async def ssam_ping(library: Library, node: ProgramNode, *, count: int) -> Quantiles:
    samples, now, peer, used = [], time.monotonic_ns, node.numbers[PONG], 0
    replies: list[bytes] = []
    library.set_handler(_REPLY, lambda _, data: replies.append(data))
    for number in range(-warm_up(count), count):
        if not number:
            used = time.process_time_ns()
        start = now()
        await library.request(peer, _REQUEST, DATA)
        while not replies:
            await library.wait()
            await library.poll()
        if number >= 0:
            samples.append(now() - start)
        if replies.pop() != DATA:
            raise AssertionError(f"reply {number} has other data")
    result = quantiles(samples, time.process_time_ns() - used)
    await library.request(peer, _END)
    while library.pending_work():
        await library.wait()
        await library.poll()
    return result


async def ssam_pong(library: Library, node: ProgramNode) -> None:  # noqa: ARG001
    """Reply until a request to end arrives."""
    ended: list[bytes] = []
    library.set_handler(_REQUEST, lambda _, data: Reply(_REPLY, data))
    library.set_handler(_END, lambda _, data: ended.append(data))
    while not ended:
        await library.wait()
        await library.poll()


def programs(kind: str, count: int) -> dict[str, Program]:
    """Return the programs of both nodes. kind: "emp trip" or "ssam trip"."""
    results: dict[str, tuple[Program, Program]] = {
        "emp trip": (partial(emp_ping, count=count), partial(emp_pong, count=count)),
        "ssam trip": (partial(ssam_ping, count=count), ssam_pong),
    }
    ping, pong = results[kind]
    return {PING: ping, PONG: pong}
