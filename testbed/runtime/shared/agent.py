"""The agent of a shared NIC: a process of its own, which drives the firmware of all functions of one interface.

Its turn: some frames that came, some between its functions, some doorbells of every host process that is awake, then what
may be sent later. Every share is bounded, so that nobody who floods keeps the others waiting for long.

A host that rings nothing for a while is not looked at any more, until it wakes the agent: who is attached and idle costs
nothing. When nobody has anything the agent spins for its budget and then sleeps.

Nothing that a host process does may end the agent or touch another. What no library of ours does (`MisconductError`) ends
the attachment, as its death does: the function is vacant then, and the peers are told so by their protocol.
"""

from __future__ import annotations

import os
import select
import socket
import struct
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

from protocols.core.apart import Apart
from protocols.core.firmware import Adapter
from testbed.kernel.frame_socket import DOWN, FrameSocket
from testbed.kernel.sealed_memory import sealed
from testbed.kernel.waiting import Waiter
from testbed.runtime import calls
from testbed.runtime.holding import routed_socket
from testbed.runtime.incarnations import incarnation
from testbed.runtime.shared import introduction
from testbed.runtime.shared.functions import MOST, Attached, Function, Wire
from testbed.runtime.shared.region import Layout, Region
from testbed.runtime.shared.rings import ORDERED, MisconductError
from testbed.runtime.shared.routed import RoutedWire

HEAP: Final = 512 << 20
"""Bytes of pinned memory that a host process may have: above the longest message. What it never uses is never there."""

_DONTWAIT: Final = socket.MSG_DONTWAIT
_FRAMES: Final = 8  # from the wire, and between functions, in a turn
_DOORBELLS: Final = 8  # of one host, in a turn
_LOOK: Final = 200_000  # ns of turns in a row after which deadlines and other descriptors are looked at
_QUIET: Final = 64  # turns in which a host has rung nothing, after which it has to wake us
_SPUN: Final = 64  # empty turns between two looks at other descriptors
_CREDENTIALS: Final = struct.Struct("3i")  # struct ucred: pid, uid, gid
_BELL: Final = select.EPOLLIN | select.EPOLLET  # it is never read: each ring is one event


@dataclass(frozen=True, slots=True)
class Offer:
    """What a NIC offers. adapters: of its functions; their incarnations are the agent's to give. hosts: host processes of
    each function, as far as its protocol has places for them. spin:
    nanoseconds to look for something before sleeping, letting others run in between. asked: where it answers by its file
    system's name, besides; who asks there does not attach."""

    apart: Apart
    ethertype: int
    device: str
    adapters: tuple[Adapter, ...]
    hosts: int = 1
    spin: int = 0
    heap: int = HEAP
    asked: Path | None = None


class SharedAgent:
    """On an interface of this process's network namespace. OSError, ValueError."""

    def __init__(self, offer: Offer) -> None:
        if not 1 <= len(offer.adapters) <= MOST:
            raise ValueError(f"{len(offer.adapters)} functions of a NIC: 1 to {MOST}")
        if not 1 <= offer.hosts <= offer.apart.hosts:
            raise ValueError(f"{offer.hosts} host processes of one function: 1 to {offer.apart.hosts}")
        if not ORDERED:
            raise ValueError("a shared NIC needs a processor that keeps stores in order, as x86 does: use inline ones")
        self._offer = offer
        self._layout = Layout(1 << (offer.apart.most - 1).bit_length(), offer.apart.descriptors, offer.heap)
        self._routed = offer.adapters[0].routed
        kind = routed_socket if self._routed else FrameSocket
        self._socket = kind(offer.device, offer.ethertype, offer.adapters[0].mtu)
        addresses = [adapter.address for adapter in offer.adapters]
        head = addresses[0] + offer.ethertype.to_bytes(2, "big")
        self._wire = RoutedWire(self._socket, head) if self._routed else Wire(self._socket, frozenset(addresses))
        began = incarnation()
        self._suspects: list[Attached] = []
        self._functions = [
            Function(adapter.of_incarnation(began), self._wire, offer.apart, self._suspects)
            for adapter in offer.adapters
        ]
        self._turns_of: Counter[int] = Counter()
        """How often each slot has had a host."""
        self._slots = [(function, place) for function in self._functions for place in range(offer.hosts)]
        self._by_address = dict(zip(addresses, self._functions, strict=True))
        self._awake: list[Attached] = []
        self._touched: set[Function] = set()
        self._due: int | None = None
        self._known: int | None = None  # of deadlines, the one that the kernel knows
        self._turns = 0
        self._waiter = Waiter(0)
        self._strangers = 0  # connections of whom nothing is known yet
        self._handlers: dict[int, Callable[[], object]] = {}
        self._frames = select.epoll()  # to ask costs half of what poll does
        self._frames.register(self._socket.fileno(), select.EPOLLIN)
        self._bells = select.epoll()  # of its own, and within the other: an event of an edge is told once
        self._ringers: dict[int, Attached] = {}
        self.strangers = 0
        """Frames for none of the functions."""
        self.refused = 0
        """Host processes that were detached for what they did."""
        self._listening = introduction.listening(offer.device)
        self._watch(self._socket.fileno(), lambda: None)
        self._watch(self._listening.fileno(), partial(self._accept, self._listening))
        if offer.asked is not None:
            self._asked = calls.listening(offer.asked)
            self._watch(self._asked.fileno(), partial(self._accept, self._asked))
        self._watch(self._bells.fileno(), self._listen)

    # The loop

    def run(self) -> None:
        """For ever."""
        now, spin, give_way = time.monotonic_ns, self._offer.spin, os.sched_yield
        looked = until = now()
        spun = 0
        gave_way = False
        while True:
            if self._turn():
                gave_way = False
                moment = now()
                until = moment + spin
                if moment - looked > _LOOK:
                    looked = moment
                    self._look(moment)
                if spin:
                    give_way()  # to whom something has just been given, where it has this processor, too
                continue
            moment = now()
            if self._touched:
                self._ask_for_deadlines()
            if self._due is not None and self._due <= moment:
                self._tick(moment)
                continue
            if moment < until:
                spun += 1
                if not spun % _SPUN:
                    self._look(moment)
                give_way()
                continue
            if not gave_way:  # a host that was woken, or that woke us, may be about to ring
                gave_way = True
                give_way()
                continue
            if self._doze():
                self._handle(self._wake_by())
                until = now() + spin
                gave_way = False

    def _wake_by(self) -> int | None:
        """When the kernel shall wake us: at the next deadline, or at an earlier one that it knows of already. Most are put
        off before they come, and to tell it each time would cost more than to wake once for nothing."""
        known, due = self._known, self._due
        if known is None or known <= time.monotonic_ns() or (due is not None and due < known):
            self._known = known = due
        return known

    def _turn(self) -> bool:
        """Something of everybody's; whether there was anything."""
        receive, longest, local = self._socket.socket.recv, self._socket.longest, self._wire.local
        busy = False
        there = self._frames.poll
        for _ in range(_FRAMES):
            if not there(0):  # cheaper than the exception that there is none
                break
            try:
                frame = receive(longest, _DONTWAIT)
            except BlockingIOError:
                break
            except OSError as error:  # told once to a socket whose interface was set down
                if error.errno not in DOWN:
                    raise
                break
            busy = True
            self._deliver(frame)
        if local:
            busy = True
            for _ in range(min(len(local), _FRAMES)):
                self._deliver(bytes(local.popleft()))
        self._turns = turns = self._turns + 1
        for host in self._awake:
            try:
                rung = host.doorbells.take(_DOORBELLS)
            except MisconductError as error:
                host.function.suspect(host, str(error))
                continue
            if rung:
                busy = True
                host.heard = turns
                self._touched.add(host.function)
                ring = host.ring
                for index in rung:
                    ring(time.monotonic_ns(), index)
        if self._suspects:
            self._refuse_suspects()
        if self._wire.later:
            self._wire.flush()
        return busy

    def _deliver(self, frame: bytes) -> None:
        function = self._by_address.get(frame[:6])
        if function is None:
            if self._wire.hear(frame):
                return
            if not (self._routed and frame[0] & 1):
                self.strangers += 1
                return
            function = self._functions[0]  # a route leads to a NIC, whatever address a frame has
        self._touched.add(function)
        function.nic.firmware.receive(time.monotonic_ns(), frame)

    def _look(self, moment: int) -> None:
        """At what turns do not: deadlines, other descriptors, and who has become quiet."""
        if self._touched:
            self._ask_for_deadlines()
        if self._due is not None and self._due <= moment:
            self._tick(moment)
        self._awake = [host for host in self._awake if self._stays_awake(host)]
        self._handle(moment)

    def _stays_awake(self, host: Attached) -> bool:
        if self._turns - host.heard > _QUIET and host.doorbells.doze():
            host.awake = False
        return host.awake

    def _doze(self) -> bool:
        """Say to everybody that we sleep; whether we may."""
        still = []
        for host in self._awake:
            if host.doorbells.doze():
                host.awake = False
            else:
                still.append(host)
        self._awake = still
        return not still

    def _listen(self) -> None:
        """Somebody has rung."""
        for bell, _ in self._bells.poll(0):
            self._wake(self._ringers[bell])

    def _wake(self, host: Attached) -> None:
        """It has rung while we did not look."""
        if not host.awake:
            host.doorbells.rise()
            host.awake = True
            host.heard = self._turns
            self._awake.append(host)

    def _ask_for_deadlines(self) -> None:
        for function in self._touched:
            function.due = function.nic.firmware.deadline
        self._touched.clear()
        dues = [function.due for function in self._functions if function.due is not None]
        if self._wire.due is not None:
            dues.append(self._wire.due)
        self._due = min(dues, default=None)

    def _tick(self, moment: int) -> None:
        for function in self._functions:
            if function.due is not None and function.due <= moment:
                self._touched.add(function)
                function.nic.firmware.tick(moment)
        if self._suspects:
            self._refuse_suspects()
        self._wire.tick(moment)
        self._ask_for_deadlines()
        self._wire.flush()

    def _watch(self, descriptor: int, handler: Callable[[], object]) -> None:
        self._handlers[descriptor] = handler
        self._waiter.watch(descriptor)

    def _unwatch(self, descriptor: int) -> None:
        del self._handlers[descriptor]
        self._waiter.unwatch(descriptor)

    def _handle(self, deadline: int | None) -> None:
        """Wait for descriptors, until then at the latest, and do what they ask for."""
        # All handlers first: one of them may close a descriptor, whose number another one gets at once.
        for handler in [self._handlers[descriptor] for descriptor in self._waiter.wait(deadline)]:
            handler()

    # Host processes

    def _accept(self, listening: socket.socket) -> None:
        try:
            connection, _ = listening.accept()
        except BlockingIOError:  # it has gone again
            return
        pid, user, _ = _CREDENTIALS.unpack(
            connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        )
        if user not in (0, os.geteuid()) or self._strangers >= MOST:
            connection.close()
            return
        self._strangers += 1
        self._watch(connection.fileno(), lambda: self._hear_stranger(connection, pid))

    def _hear_stranger(self, connection: socket.socket, pid: int) -> None:
        """Who has not attached yet."""
        self._unwatch(connection.fileno())
        self._strangers -= 1
        try:
            said, handed = introduction.hear(connection, _DONTWAIT)
            for descriptor in handed:
                os.close(descriptor)
            if said is None:
                connection.close()
            elif said.get("do") == "report":
                introduction.tell(connection, {**self._of_all(), "hosts": self._hosts(), "counted": self._counted()})
                connection.close()
            else:
                self._attach(connection, pid, said)
        except (OSError, ValueError):
            connection.close()

    def _attach(self, connection: socket.socket, pid: int, said: dict[str, Any]) -> None:
        offer, place = self._offer, said.get("function")
        wrong = ""
        if said.get("version") != introduction.VERSION or said.get("do") != "attach":
            wrong = "this agent speaks another version"
        elif said.get("ethertype") != offer.ethertype:
            wrong = f"this NIC's frames have EtherType 0x{offer.ethertype:04x}"
        elif place is None:
            place = next((slot for slot, (one, host) in enumerate(self._slots) if one.hosts[host] is None), None)
            if place is None:
                wrong = f"all {len(self._slots)} functions of this NIC have a host process"
        elif not isinstance(place, int) or not 0 <= place < len(self._slots):
            wrong = f"this NIC has functions 0 to {len(self._slots) - 1}"
        elif self._slots[place][0].hosts[self._slots[place][1]] is not None:
            wrong = f"function {place} of this NIC has a host process"
        if wrong:
            introduction.tell(connection, {"error": wrong})
            connection.close()
            return
        assert isinstance(place, int)
        self._begin(place, connection, pid)

    def _begin(self, slot: int, connection: socket.socket, pid: int) -> None:
        """OSError when it is gone already."""
        layout = self._layout
        handle = os.pidfd_open(pid)
        bell = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        reading, writing = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        function, place = self._slots[slot]
        self._turns_of[slot] += 1
        memory = sealed(f"nic {self._offer.device} function {slot}", layout.size)
        host = Attached(Region(memory, layout), connection, pid, handle, bell, writing)
        adapter = function.nic.adapter
        try:
            introduction.tell(
                connection,
                {
                    "entries": layout.entries, "descriptors": layout.descriptors, "heap": layout.heap,
                    "number": adapter.number, "addresses": [address.hex() for address in adapter.addresses],
                    "mtu": adapter.mtu, "incarnation": adapter.incarnation, "function": slot,
                    "place": (place, self._offer.hosts, self._turns_of[slot]),
                    "routed": adapter.routed, "ordered": adapter.ordered,
                },
                (memory, bell, reading),
            )  # fmt: skip
        except OSError:
            host.close()
            return
        finally:
            os.close(memory)
            os.close(reading)
        function.attach(time.monotonic_ns(), host, place)
        self._touched.add(function)
        self._watch(connection.fileno(), lambda: self._hear(host))
        self._watch(handle, lambda: self._detach(host))
        self._ringers[bell] = host
        self._bells.register(bell, _BELL)
        self._wake(host)

    def _hear(self, host: Attached) -> None:
        """A host that has attached asks something, or is gone."""
        function = host.function
        if function.hosts[host.place] is not host:
            return
        try:
            said, handed = introduction.hear(host.connection, _DONTWAIT)
            for descriptor in handed:
                os.close(descriptor)
            if said is None:
                self._detach(host)
            elif said.get("do") == "report":
                introduction.tell(host.connection, self._report(function))
            elif said.get("do") == "waiting":
                introduction.tell(host.connection, {"waiting": function.nic.firmware.waiting()[:50]})
            else:
                raise ValueError("no question")
        except (OSError, ValueError) as error:
            self._refuse(host, f"it asks what cannot be answered: {error}")

    def _report(self, function: Function) -> dict[str, Any]:
        """Of one function, and of all together."""
        return {"counted": dict(function.nic.firmware.counted()), **self._of_all()}

    def _counted(self) -> dict[str, int]:
        """By the firmware, of all functions together."""
        whole: Counter[str] = Counter()
        for function in self._functions:
            whole.update(function.nic.firmware.counted())
        return dict(whole)

    def _hosts(self) -> dict[str, int]:
        """By function, the number of the process that has it."""
        hosts = [function.hosts[place] for function, place in self._slots]
        return {str(slot): host.pid for slot, host in enumerate(hosts) if host is not None}

    def _of_all(self) -> dict[str, int]:
        """What became of frames, and what it cost."""
        self._socket.look()
        return {
            "pid": os.getpid(), "taken": self._socket.taken, "dropped": self._socket.dropped,
            "unsent": self._wire.unsent, "down": self._wire.down, "cpu": time.process_time_ns(),
            "strangers": self.strangers, "refused": self.refused, "overflowed": self._wire.overflowed,
            "kept": self._wire.kept,
        }  # fmt: skip

    def _refuse_suspects(self) -> None:
        suspects = self._suspects.copy()
        self._suspects.clear()
        for host in suspects:
            self._refuse(host, host.suspect)

    def _refuse(self, host: Attached, why: str) -> None:
        if host.function.hosts[host.place] is not host:
            return
        self.refused += 1
        sys.stderr.write(
            f"function {self._slots.index((host.function, host.place))}: its host process is refused: {why}\n"
        )
        self._detach(host)

    def _detach(self, host: Attached) -> None:
        """A host process is gone, or shall be: what it had is freed, and its peers are told."""
        function = host.function
        if function.hosts[host.place] is not host:
            return
        self._unwatch(host.connection.fileno())
        self._unwatch(host.handle)
        self._bells.unregister(host.bell)
        del self._ringers[host.bell]
        if host.awake:
            self._awake.remove(host)
        function.detach(time.monotonic_ns(), host, _later(function.nic.adapter.incarnation))
        self._touched.add(function)
        self._wire.flush()


def _later(former: int) -> int:
    """An incarnation after that one: the time, as for any, or one more where that is later."""
    return max(incarnation(), former % 0xFFFF_FFFF + 1)
