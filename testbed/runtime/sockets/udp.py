"""UDP endpoint for MPI: one socket, matching in user space, and no reliability on top of UDP.

A message is one datagram, or as many as it needs; it is received when all of them have come. There is no acknowledgement,
no retransmission and no flow control: lost messages stay lost, duplicated ones are received twice. A send is complete when
the kernel has taken it, which says nothing about its receiver.

This holds for a program's first communicator. The others, for barriers, results and the end of a measurement, use TCP, as
iperf3 and netperf do, so that losses can be reported. Implements `MatchingEndpoint`.
"""

from __future__ import annotations

import contextlib
import errno
import select
import socket
import struct
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Final

from protocols.core.completion import Completion
from protocols.core.firmware import Adapter, Agent, Nic
from protocols.mpi.device import Device, ProbeResult, ReceiveCompletion, SendCompletion
from protocols.mpi.matching import CONTEXTS, MATCHED, SoftwareMatchingEndpoint
from protocols.mpi.mpi_errors import Envelope
from testbed.engine.loop import Loop
from testbed.kernel.frame_socket import BUFFER
from testbed.runtime.sockets.datagrams import HEADER, MAX, MAX_MESSAGE, Assembly, Datagrams, Message, split
from testbed.runtime.sockets.protocol import KernelProtocol, NoFirmware
from testbed.runtime.sockets.tcp import TcpEndpoint

PORT: Final = 7118

_BUFFER_FORCE: Final = 33  # SO_RCVBUFFORCE of asm-generic/socket.h
_DATAGRAMS: Final = 2  # contexts, one communicator's, whose messages are datagrams
_TURN: Final = 64  # datagrams that are received before programs run again
_MEMORY: Final = 55  # SO_MEMINFO of linux/socket.h
_MEMORY_DROPS: Final = 8  # SK_MEMINFO_DROPS of linux/sock_diag.h: the ninth number of it
_NOT_TAKEN: Final = (
    errno.ENOBUFS, errno.ENETDOWN, errno.ENETUNREACH, errno.EHOSTUNREACH, errno.EHOSTDOWN, errno.ECONNREFUSED, errno.EPERM,
)  # fmt: skip
"""Errors with which the kernel discards a datagram: the cable is out, a queue is full."""


class UdpEndpoint(SoftwareMatchingEndpoint):
    """The host library. It cannot send before `connect`."""

    def __init__(self, adapter: Adapter, nic: Nic) -> None:
        super().__init__()
        self.rank = adapter.number
        self.size = len(adapter.addresses)
        self.contexts = 2 * _DATAGRAMS
        self.max_tag = (1 << 31) - 1
        self.max_message_size = MAX_MESSAGE
        self._nic = nic
        self._beside = TcpEndpoint(adapter, nic)
        self._socket: socket.socket
        self._ready: select.epoll
        self._addresses: list[tuple[str, int]] = []
        self._ranks: dict[str, int] = {}
        self._unsent: deque[tuple[int, Datagrams, Completion[Envelope], Envelope]] = deque()
        self._number = 0
        self._assembly = Assembly()
        self._scratch = memoryview(bytearray(HEADER.size + MAX))
        self._counts = dict.fromkeys(("sent", "came", "not_taken", "strange"), 0)

    async def connect(self, loop: Loop, addresses: Sequence[str]) -> None:
        """Open the socket, and connect to all other nodes by TCP: then their sockets are open, too. Raises TestbedError."""
        self._addresses = [(address, PORT) for address in addresses]
        self._ranks = {address: rank for rank, address in enumerate(addresses)}
        family = socket.AF_INET6 if ":" in addresses[self.rank] else socket.AF_INET
        self._socket = socket.socket(family, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK)
        with contextlib.suppress(OSError):  # without root the default buffer must do
            self._socket.setsockopt(socket.SOL_SOCKET, _BUFFER_FORCE, BUFFER)
        self._socket.bind(self._addresses[self.rank])  # receivers identify the rank by this address
        self._ready = select.epoll()
        self._ready.register(self._socket.fileno(), select.EPOLLIN)
        loop.watch(self._ready.fileno(), self._serve)
        await self._beside.connect(loop, addresses)

    def send(self, destination: int, context: int, tag: int, data: memoryview, completion: SendCompletion) -> bool:
        if context % CONTEXTS >= _DATAGRAMS and context != MATCHED:
            return self._beside.send(destination, context, tag, data, completion)
        envelope = Envelope(destination, tag, len(data))
        if destination == self.rank:
            completion.complete(envelope)
            self._arrived(self.rank, Message(context, tag, data))
            return True
        self._number = self._number + 1 & 0xFFFF_FFFF
        datagrams = split(context, tag, self._number, data)
        if self._unsent or not self._taken(destination, datagrams):
            if not self._unsent:
                self._ready.modify(self._socket.fileno(), select.EPOLLIN | select.EPOLLOUT)
            self._unsent.append((destination, datagrams, completion, envelope))
            return True
        completion.complete(envelope)
        self._nic.post_completion(0)
        return True

    def send_synchronously(
        self, destination: int, context: int, tag: int, data: memoryview, completion: SendCompletion
    ) -> bool:
        """Send synchronously; in the first communicator the receiver's acknowledgement may be lost, too."""
        send = self._beside.send_synchronously if context >= _DATAGRAMS else super().send_synchronously
        return send(destination, context, tag, data, completion)

    def receive(self, source: int, context: int, tag: int, buffer: memoryview, completion: ReceiveCompletion) -> bool:
        receive = self._beside.receive if context >= _DATAGRAMS else super().receive
        return receive(source, context, tag, buffer, completion)

    def probe(
        self, source: int, context: int, tag: int, wait: bool, claim: bool, completion: Completion[ProbeResult | None]
    ) -> bool:
        probe = self._beside.probe if context >= _DATAGRAMS else super().probe
        return probe(source, context, tag, wait, claim, completion)

    def completed(self, index: int) -> None:
        """Do nothing: the end of a transfer is reported for the run's progress, and known here already."""

    def counted(self) -> Mapping[str, int]:
        """Return counters of datagrams: sent, came; not_taken: discarded by our kernel at once; overrun: by the receiver's,
        because they were not read in time; strange: not of ours. incomplete: messages of which a datagram was lost."""
        if not self._addresses:
            return {}
        memory = struct.unpack("9I", self._socket.getsockopt(socket.SOL_SOCKET, _MEMORY, 36))
        overrun = memory[_MEMORY_DROPS]
        return {**self._counts, "overrun": overrun, "incomplete": self._assembly.incomplete}

    def waiting(self) -> list[str]:
        sentences = [f"{len(self._unsent)} messages have still to be taken by the kernel"] if self._unsent else []
        if receives := self.matching.posted_count():
            sentences.append(f"{receives} receives have found no message, which may be lost: this is UDP")
        counts = ", ".join(f"{name} {count}" for name, count in self.counted().items())
        by_tcp = [f"beside them, by TCP: {sentence}" for sentence in self._beside.waiting()]
        return [*sentences, f"datagrams: {counts}", *by_tcp]

    def _taken(self, destination: int, datagrams: Datagrams) -> bool:
        """Send datagrams; return whether the kernel has taken all. Those that it has are removed from the list."""
        send, address, counts = self._socket.sendmsg, self._addresses[destination], self._counts
        while datagrams:
            try:
                send(datagrams[-1], (), 0, address)
                counts["sent"] += 1
            except BlockingIOError:
                return False
            except OSError as error:
                if error.errno not in _NOT_TAKEN:
                    raise
                counts["not_taken"] += 1
            datagrams.pop()
        return True

    def _serve(self, _now: int) -> None:
        """Receive and send as far as the socket is ready."""
        for _, events in self._ready.poll(0):
            if events & select.EPOLLOUT:
                self._send_on()
            if events & ~select.EPOLLOUT:
                self._take()

    def _send_on(self) -> None:
        unsent = self._unsent
        while unsent and self._taken(*unsent[0][:2]):
            _, _, completion, envelope = unsent.popleft()
            completion.complete(envelope)
            self._nic.post_completion(0)
        if not unsent:
            self._ready.modify(self._socket.fileno(), select.EPOLLIN)

    def _take(self) -> None:
        """Receive the waiting datagrams, at most `_TURN`, so that programs run under any load."""
        take, scratch, ranks, counts = self._socket.recvfrom_into, self._scratch, self._ranks, self._counts
        whole = self._assembly.take
        for _ in range(_TURN):
            try:
                got, address = take(scratch)
            except BlockingIOError:
                return
            except OSError as error:  # the network's error for a datagram that was sent
                if error.errno not in _NOT_TAKEN:
                    raise
                continue
            counts["came"] += 1
            source = ranks.get(address[0])
            if source is None:
                counts["strange"] += 1
                continue
            try:
                message = whole(source, scratch[:got])
            except ValueError:
                counts["strange"] += 1
                continue
            if message is not None:
                self._arrived(source, message)

    def _arrived(self, source: int, message: Message) -> None:
        context, tag, content = message
        if self.matching.arrive_complete(source, context, tag, content):
            self._nic.post_completion(0)


def plug(adapter: Adapter, nic: Nic) -> Agent:
    """Make the agent that takes the place of a NIC's."""
    endpoint = UdpEndpoint(adapter, nic)
    return Agent(NoFirmware(endpoint.counted), endpoint)


PROTOCOL = KernelProtocol(plug=plug, ethertype=0, device=Device, connect=UdpEndpoint.connect, lossy=True)
