"""UDP endpoint for MPI: one socket, matching in user space, and no reliability on top of UDP.

A message is one datagram, or several if it does not fit into one; it is received when all its datagrams have arrived. There
is no acknowledgement, no retransmission and no flow control: lost messages stay lost, duplicated ones are received twice. A
send is complete when the kernel has accepted the message, whether or not it arrives.

This holds for a program's first communicator. The others, for barriers, results and the end of a measurement, use TCP, as
in iperf3 and netperf, so that losses can be reported. Implements `MatchingEndpoint`.
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
from testbed.runtime.sockets.datagrams import (
    HEADER,
    MAX_FRAGMENT,
    MAX_MESSAGE_SIZE,
    Assembly,
    Datagrams,
    Message,
    split,
)
from testbed.runtime.sockets.protocol import KernelProtocol, NoFirmware
from testbed.runtime.sockets.tcp import TcpEndpoint

PORT: Final = 7118

_SO_RCVBUFFORCE: Final = 33  # asm-generic/socket.h
_DATAGRAM_CONTEXTS: Final = 2  # number of contexts whose messages are datagrams: those of one communicator
_MAX_BATCH: Final = 64  # datagrams to receive before programs run again
_SO_MEMINFO: Final = 55  # asm-generic/socket.h
_SK_MEMINFO_DROPS: Final = 8  # linux/sock_diag.h: index of the number of drops
_DISCARD_ERRORS: Final = (
    errno.ENOBUFS, errno.ENETDOWN, errno.ENETUNREACH, errno.EHOSTUNREACH, errno.EHOSTDOWN, errno.ECONNREFUSED, errno.EPERM,
)  # fmt: skip
"""Errors with which the kernel discards a datagram, for example because a cable is pulled or a queue is full."""


class UdpEndpoint(SoftwareMatchingEndpoint):
    """The host library of a rank. `connect` must be awaited before messages are sent to other ranks."""

    def __init__(self, adapter: Adapter, nic: Nic) -> None:
        super().__init__()
        self.rank = adapter.number
        self.size = len(adapter.addresses)
        self.contexts = 2 * _DATAGRAM_CONTEXTS
        self.max_tag = (1 << 31) - 1
        self.max_message_size = MAX_MESSAGE_SIZE
        self._nic = nic
        self._tcp = TcpEndpoint(adapter, nic)
        self._socket: socket.socket
        self._epoll: select.epoll
        self._addresses: list[tuple[str, int]] = []
        self._ranks: dict[str, int] = {}
        self._unsent: deque[tuple[int, Datagrams, Completion[Envelope], Envelope]] = deque()
        self._message_number = 0
        self._assembly = Assembly()
        self._datagram_buffer = memoryview(bytearray(HEADER.size + MAX_FRAGMENT))
        self._counters = dict.fromkeys(("sent", "came", "not_taken", "strange"), 0)

    async def connect(self, loop: Loop, addresses: Sequence[str]) -> None:
        """Open the socket, and connect to all other nodes by TCP, after which their UDP sockets are open, too. addresses: IP
        addresses by rank. Raises TestbedError."""
        self._addresses = [(address, PORT) for address in addresses]
        self._ranks = {address: rank for rank, address in enumerate(addresses)}
        family = socket.AF_INET6 if ":" in addresses[self.rank] else socket.AF_INET
        self._socket = socket.socket(family, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK)
        with contextlib.suppress(OSError):  # without CAP_NET_ADMIN, the socket keeps the default buffer
            self._socket.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, BUFFER)
        self._socket.bind(self._addresses[self.rank])  # receivers identify the rank by this address
        self._epoll = select.epoll()
        self._epoll.register(self._socket.fileno(), select.EPOLLIN)
        loop.watch(self._epoll.fileno(), self._on_ready)
        await self._tcp.connect(loop, addresses)

    def send(self, destination: int, context: int, tag: int, data: memoryview, completion: SendCompletion) -> bool:
        if context % CONTEXTS >= _DATAGRAM_CONTEXTS and context != MATCHED:
            return self._tcp.send(destination, context, tag, data, completion)
        envelope = Envelope(destination, tag, len(data))
        if destination == self.rank:
            completion.complete(envelope)
            self._deliver(self.rank, Message(context, tag, data))
            return True
        self._message_number = self._message_number + 1 & 0xFFFF_FFFF
        datagrams = split(context, tag, self._message_number, data)
        if self._unsent or not self._send_datagrams(destination, datagrams):
            if not self._unsent:
                self._epoll.modify(self._socket.fileno(), select.EPOLLIN | select.EPOLLOUT)
            self._unsent.append((destination, datagrams, completion, envelope))
            return True
        completion.complete(envelope)
        self._nic.post_completion(0)
        return True

    def send_synchronously(
        self, destination: int, context: int, tag: int, data: memoryview, completion: SendCompletion
    ) -> bool:
        """Send synchronously. In the first communicator, the receiver's acknowledgement can be lost like the message."""
        send = self._tcp.send_synchronously if context >= _DATAGRAM_CONTEXTS else super().send_synchronously
        return send(destination, context, tag, data, completion)

    def receive(self, source: int, context: int, tag: int, buffer: memoryview, completion: ReceiveCompletion) -> bool:
        receive = self._tcp.receive if context >= _DATAGRAM_CONTEXTS else super().receive
        return receive(source, context, tag, buffer, completion)

    def probe(
        self, source: int, context: int, tag: int, wait: bool, claim: bool, completion: Completion[ProbeResult | None]
    ) -> bool:
        probe = self._tcp.probe if context >= _DATAGRAM_CONTEXTS else super().probe
        return probe(source, context, tag, wait, claim, completion)

    def on_completion(self, index: int) -> None:
        """Do nothing: completions are posted only to show the run's progress."""

    def counter_values(self) -> Mapping[str, int]:
        """Return the counters. Numbers of datagrams: sent; came: received; not_taken: discarded by the kernel when sent;
        overrun: dropped on receipt because the socket's buffer was full; strange: invalid, or not sent by a rank. Number of
        messages: incomplete: received in part."""
        if not self._addresses:
            return {}
        meminfo = struct.unpack("9I", self._socket.getsockopt(socket.SOL_SOCKET, _SO_MEMINFO, 36))
        overrun = meminfo[_SK_MEMINFO_DROPS]
        return {**self._counters, "overrun": overrun, "incomplete": self._assembly.incomplete}

    def pending_work(self) -> list[str]:
        sentences = [f"the kernel has not accepted {len(self._unsent)} messages yet"] if self._unsent else []
        if receives := self.matching.posted_count():
            sentences.append(f"{receives} receives have found no message, which may be lost: this is UDP")
        counts = ", ".join(f"{name} {count}" for name, count in self.counter_values().items())
        by_tcp = [f"by TCP: {sentence}" for sentence in self._tcp.pending_work()]
        return [*sentences, f"datagrams: {counts}", *by_tcp]

    def _send_datagrams(self, destination: int, datagrams: Datagrams) -> bool:
        """Send datagrams; return whether the kernel has accepted or discarded all of them. These are removed from the
        list."""
        send, address, counters = self._socket.sendmsg, self._addresses[destination], self._counters
        while datagrams:
            try:
                send(datagrams[-1], (), 0, address)
                counters["sent"] += 1
            except BlockingIOError:
                return False
            except OSError as error:
                if error.errno not in _DISCARD_ERRORS:
                    raise
                counters["not_taken"] += 1
            datagrams.pop()
        return True

    def _on_ready(self, _now: int) -> None:
        """Receive and send as far as the socket is ready."""
        for _, events in self._epoll.poll(0):
            if events & select.EPOLLOUT:
                self._continue_sending()
            if events & ~select.EPOLLOUT:
                self._receive_datagrams()

    def _continue_sending(self) -> None:
        unsent = self._unsent
        while unsent and self._send_datagrams(*unsent[0][:2]):
            _, _, completion, envelope = unsent.popleft()
            completion.complete(envelope)
            self._nic.post_completion(0)
        if not unsent:
            self._epoll.modify(self._socket.fileno(), select.EPOLLIN)

    def _receive_datagrams(self) -> None:
        """Receive the waiting datagrams, at most `_MAX_BATCH`, so that programs run under any load."""
        receive_into, buffer, ranks = self._socket.recvfrom_into, self._datagram_buffer, self._ranks
        counters, assembly = self._counters, self._assembly
        for _ in range(_MAX_BATCH):
            try:
                size, address = receive_into(buffer)
            except BlockingIOError:
                return
            except OSError as error:  # an ICMP error for a datagram that was sent
                if error.errno not in _DISCARD_ERRORS:
                    raise
                continue
            counters["came"] += 1
            source = ranks.get(address[0])
            if source is None:
                counters["strange"] += 1
                continue
            try:
                message = assembly.add(source, buffer[:size])
            except ValueError:
                counters["strange"] += 1
                continue
            if message is not None:
                self._deliver(source, message)

    def _deliver(self, source: int, message: Message) -> None:
        context, tag, content = message
        if self.matching.arrive_complete(source, context, tag, content):
            self._nic.post_completion(0)


def plug(adapter: Adapter, nic: Nic) -> Agent:
    """Make the agent of a rank, whose firmware only returns the endpoint's counters."""
    endpoint = UdpEndpoint(adapter, nic)
    return Agent(NoFirmware(endpoint.counter_values), endpoint)


PROTOCOL = KernelProtocol(plug=plug, ethertype=0, device=Device, connect=UdpEndpoint.connect, lossy=True)
