"""Checks of messages between two nodes, one of which restarts, in the simulation.

Whether a message in flight at a restart has arrived is not known (`MatchingEndpoint`): its transfer ends, or fails
with ERR_PROC_FAILED. No message arrives in part, twice, or after a message of a later incarnation of its sender.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Final

from protocols.core.completion import Completion
from protocols.mpi.device import Device
from protocols.mpi.mpi_errors import ERR_PROC_FAILED, Envelope, MPIError
from testbed.controller.conformance.candidate import TIMEOUT, Candidate, Program
from testbed.controller.conformance.exchanges import content
from testbed.controller.conformance.message_checks import Buffer, Memory, check_released, send
from testbed.controller.conformance.network_faults import MICROSECOND, MILLISECOND, SECOND
from testbed.controller.conformance.trials import Violation, errors_as_violations
from testbed.fabric.interface import Receive
from testbed.sim.sim_node import SimNode
from testbed.sim.simulation import Simulation
from testbed.spec.model import Description

RESTART_TIMES_NS: Final = (100 * MICROSECOND, MILLISECOND, 5 * MILLISECOND)
"""Virtual times of restarts. At 100 Mbit/s, 100,000 bytes take 8 ms. At the first time, at most the rendezvous request of a
long message has arrived; at the others, a part of its data."""
LATE_FRAMES: Final = 5
"""Number of the first frames of an incarnation, each of which is late in one trial."""
MAX_FRAMES_BEFORE_LATE: Final = 3
"""Maximum number of frames of the next incarnation that arrive before a late one."""
LATE_SIZE: Final = 5_000
"""Size of messages with a late frame, bytes."""
RESTART_COUNT: Final = 100
"""Number of restarts of a node while messages to it are in flight."""
IN_FLIGHT: Final = 8
"""Number of messages that each of these restarts interrupts."""
LAST_MESSAGES: Final = 100
"""Number of messages to the last incarnation."""


def restarted_peers(candidate: Candidate) -> None:
    """Restart the receiver of a message, before it posts a receive, and the sender, at several times; then the sender while
    a frame is late, and the receiver often."""
    for size in candidate.sizes(100, 5_000, 100_000):
        for moment in RESTART_TIMES_NS:
            for synchronous in (False, True):
                _restart_receiver(candidate, size, moment, synchronous)
            _restart_sender(candidate, size, moment)
    if not candidate.protocol.needs_order:
        for number in range(LATE_FRAMES):
            for before in range(1, MAX_FRAMES_BEFORE_LATE + 1):
                _restart_with_late_frame(candidate, min(LATE_SIZE, candidate.max_message_size), number, before)
    _restart_often(candidate)


@contextmanager
def _pair(candidate: Candidate) -> Iterator[Simulation]:
    """Yield a simulation of two nodes, n1 and n2. Errors of its NICs and host libraries are violations."""
    with (
        errors_as_violations(),
        Simulation(Description.back_to_back(delay="20us", rate="100mbit"), candidate.protocol.plug, seed=0) as pair,
    ):
        yield pair


def _start(candidate: Candidate, pair: Simulation, name: str, *programs: Program) -> Device:
    """Start programs on the NIC that a node has now; return their device."""
    device = candidate.protocol.device(pair.nodes[name].endpoint)
    for program in programs:
        pair.spawn(name, _connected, device, program)
    return device


async def _connected(_endpoint: object, node: SimNode, device: Device, program: Program) -> None:
    await device.connect()
    await program(device, node)


async def _end_or_fail(transfer: Completion[Envelope]) -> bool:
    """Wait for a transfer with a node that restarts; return whether it has not failed. Raises Violation for an error other
    than ERR_PROC_FAILED."""
    try:
        await transfer
    except MPIError as error:
        if error.Get_error_class() != ERR_PROC_FAILED:
            raise Violation(f"a transfer with a restarted node failed with another error: {error}") from error
        return False
    return True


def _run_for(pair: Simulation, ended: Callable[[], bool], time: int, step: int) -> bool:
    """Run until `ended` returns true, and for `time` at most; return whether it did. step: time between two calls."""
    limit = pair.now() + time
    while not ended() and pair.now() < limit:
        pair.run_until(pair.now() + step)
    return ended()


def _restart_receiver(candidate: Candidate, size: int, moment: int, synchronous: bool) -> None:
    """Restart the receiver of a message. Its send must end."""
    data, ends = content(size, size), []

    async def transfer(device: Device, _node: SimNode) -> None:
        await _end_or_fail(send(device, 1, 5, data, synchronous=synchronous))
        ends.append(True)

    async def receive(device: Device, _node: SimNode) -> None:
        Buffer(device, 0, 5, size)  # the message may have been in flight to this incarnation
        await send(device, 0, 6, b"here again")

    with _pair(candidate) as pair:
        _start(candidate, pair, "n1", transfer)
        _start(candidate, pair, "n2")
        pair.run_until(moment)
        pair.restart("n2")
        _start(candidate, pair, "n2", receive)
        if not _run_for(pair, lambda: bool(ends), TIMEOUT, SECOND):
            kind = "synchronous transfer" if synchronous else "transfer"
            raise Violation(
                f"the {kind} of {size} bytes, whose receiver restarts after {moment / 1e6:g} ms, never ends"
            )


class _Receiver:
    """Program that receives messages until the message of the sender's second incarnation has arrived."""

    def __init__(self, size: int) -> None:
        self.messages: Final = [content(incarnation, size) for incarnation in (1, 2)]
        self.has_ended = False

    async def __call__(self, device: Device, _node: SimNode) -> None:
        expected = list(self.messages)
        while expected:
            buffer = Buffer(device, 0, 5, len(expected[0]))
            if await _end_or_fail(buffer.completion):
                received = buffer.content
                if received not in expected:
                    error = (
                        "one arrived twice or out of date" if received in self.messages else "the content mixes both"
                    )
                    raise Violation(
                        f"two messages of {len(received)} bytes, sent by two incarnations of their sender: {error}"
                    )
                del expected[: expected.index(received) + 1]
        self.has_ended = True


def _restart_sender(candidate: Candidate, size: int, moment: int) -> None:
    """Restart the sender of a message, whose next incarnation sends another one."""
    receiver = _Receiver(size)
    with _pair(candidate) as pair:
        _start(candidate, pair, "n2", receiver)
        _start(candidate, pair, "n1", partial(_send_once, receiver.messages[0]))
        pair.run_until(moment)
        _send_anew(candidate, pair, receiver, f"after {moment / 1e6:g} ms")


async def _send_once(data: bytes, device: Device, _node: SimNode) -> None:
    await send(device, 1, 5, data)


async def _send_until_received(data: bytes, device: Device, _node: SimNode) -> None:
    """Send a message again as long as its transfer fails: a late frame of the former incarnation may end a connection."""
    while not await _end_or_fail(send(device, 1, 5, data, synchronous=True)):
        pass


def _send_anew(candidate: Candidate, pair: Simulation, receiver: _Receiver, when: str) -> None:
    """Restart the sender, and wait until the message of its second incarnation has arrived. Raises Violation."""
    pair.restart("n1")
    _start(candidate, pair, "n1", partial(_send_until_received, receiver.messages[1]))
    if not _run_for(pair, lambda: receiver.has_ended, TIMEOUT, SECOND):
        size = len(receiver.messages[0])
        raise Violation(f"sender restarted {when}: the {size}-byte message of its next incarnation never arrives")


class _LateFrame:
    """Receiver of one direction of a link that delays a frame until `before` frames of the sender's next incarnation have
    arrived. number: number of the late frame, from 0."""

    def __init__(self, receive: Receive, number: int, before: int) -> None:
        self._receive = receive
        self._frames_before_late = number
        self._frames_of_next_incarnation = before
        self._frames_in_flight = 0  # of the incarnation that has ended
        self._late: bytes | None = None
        self.has_restarted = False

    @property
    def is_under_way(self) -> bool:
        return self._late is not None

    def restart(self, in_flight: int) -> None:
        """Count frames of the next incarnation from now on. in_flight: frames already on the link, which arrive first."""
        self._frames_in_flight = in_flight
        self.has_restarted = True

    def take(self, now: int, frame: bytes) -> None:
        if self._late is None and self._frames_before_late >= 0:
            self._frames_before_late -= 1
            if self._frames_before_late < 0:
                self._late = frame
                return
        self._receive(now, frame)
        if self._frames_in_flight:
            self._frames_in_flight -= 1
        elif self.has_restarted and self._late is not None:
            self._frames_of_next_incarnation -= 1
            if not self._frames_of_next_incarnation:
                late, self._late = self._late, None
                self._receive(now, late)


def _restart_with_late_frame(candidate: Candidate, size: int, number: int, before: int) -> None:
    """Restart the sender of a message while one of its frames is in flight, which arrives during the next message."""
    receiver = _Receiver(size)
    with _pair(candidate) as pair:
        directions = pair.network.link_directions.items()
        (direction,) = [link_direction for (_, name), link_direction in directions if name == "forward"]
        late = _LateFrame(direction.receive, number, before)
        direction.set_receiver(late.take)
        _start(candidate, pair, "n2", receiver)
        _start(candidate, pair, "n1", partial(_send_once, receiver.messages[0]))
        if not _run_for(pair, lambda: late.is_under_way, SECOND, 10 * MICROSECOND):
            return  # the message has fewer frames
        late.restart(direction.in_flight)
        _send_anew(candidate, pair, receiver, f"while its frame {number + 1} is under way")


def _restart_often(candidate: Candidate) -> None:
    """Restart a node many times while messages to it are in flight. All sends end, and then use no memory; the last
    incarnation receives messages."""
    ends, greetings = [0], [0]
    references: list[weakref.ref[Memory]] = []

    async def send_all(device: Device, _node: SimNode) -> None:
        memories = [Memory(100) for _ in range(IN_FLIGHT)]
        references.extend(map(weakref.ref, memories))
        for transfer in [device.send(1, 0, 3, memoryview(memory)) for memory in memories]:
            await _end_or_fail(transfer)
        ends[0] += 1

    async def receive_greeting(device: Device, _node: SimNode) -> None:
        while not await _end_or_fail(Buffer(device, 1, 4, 5).completion):
            pass
        greetings[0] += 1

    async def send_greeting(device: Device, _node: SimNode) -> None:
        await send(device, 0, 4, b"hello")

    with _pair(candidate) as pair:
        survivor = _start(candidate, pair, "n1", receive_greeting)
        last = _start(candidate, pair, "n2", send_greeting)
        (link,) = pair.layout.links
        for restarts in range(RESTART_COUNT + 1):
            if restarts:
                pair.cut(link.name)
                for program in (send_all, receive_greeting):
                    pair.spawn("n1", _connected, survivor, program)
                pair.run_until(pair.now() + MILLISECOND)
                pair.restart("n2")
                pair.restore(link.name)
                last = _start(candidate, pair, "n2", send_greeting)
            if not _run_for(pair, lambda: ends[0] + greetings[0] == 2 * restarts + 1, TIMEOUT, MILLISECOND):  # noqa: B023
                raise Violation(
                    f"after {restarts} restarts of a node, transfers with it never end: {survivor.pending_work()[:3]}"
                )
        _exchange_with_last(pair, survivor, last)
        check_released(references)


def _exchange_with_last(pair: Simulation, survivor: Device, last: Device) -> None:
    messages = [content(number, 100) for number in range(LAST_MESSAGES)]
    received = [0]

    async def receive_all(device: Device, _node: SimNode) -> None:
        for data in messages:
            await Buffer(device, 0, 8, len(data)).expect(0, 8, data)
            received[0] += 1

    async def send_all(device: Device, _node: SimNode) -> None:
        for transfer in [send(device, 1, 8, data) for data in messages]:
            await transfer

    pair.spawn("n2", _connected, last, receive_all)
    pair.spawn("n1", _connected, survivor, send_all)
    if not _run_for(pair, lambda: received[0] == len(messages), TIMEOUT, MILLISECOND):
        raise Violation(
            f"after {RESTART_COUNT} restarts of a node, {received[0]} of {len(messages)} messages to it arrive: "
            f"{survivor.pending_work()[:3]}"
        )
