"""Agent of a shared NIC: a process that drives the firmware of all functions of one interface.

A turn takes some received frames, some frames between its functions, some doorbells of every host process that is awake,
and sends the frames that may be sent later. Every share is bounded, so that no flood delays the others for long.

A host that rings no doorbell for a while is not polled any more until it wakes the agent: an attached idle host costs
nothing. When there is nothing to do the agent spins for its budget and then sleeps.

No host process can end the agent or affect another one. Behaviour that no library of ours shows (`MisconductError`) ends
the attachment, as the host's death does: the function is vacant then, and its protocol notifies the peers.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import struct
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final

from protocols.core.firmware import Adapter
from protocols.core.split_memory import SplitDriver
from testbed.engine.failures import failure
from testbed.errors import FirmwareError
from testbed.kernel.filesystem import make_sealed
from testbed.kernel.packet_options import join_fanout
from testbed.kernel.waiter import Waiter
from testbed.runtime import calls
from testbed.runtime.incarnations import incarnation
from testbed.runtime.nodes.veth_port import port_on, socket_on
from testbed.runtime.shared import introduction
from testbed.runtime.shared.functions import MAX, Attached, Function, Wire
from testbed.runtime.shared.region import Layout, Region
from testbed.runtime.shared.rings import ORDERED, ProtocolViolationError
from testbed.runtime.shared.workers import ALONE, GROUP, Worker

HEAP: Final = 512 << 20
"""Bytes of pinned memory of a host process: above the longest message. Unused pages take no memory."""

_DONTWAIT: Final = socket.MSG_DONTWAIT
_FRAMES: Final = 8  # from the wire, and between functions, in a turn
_DOORBELLS: Final = 8  # of one host, in a turn
_LOOK: Final = 200_000  # ns of busy turns after which deadlines and other descriptors are checked
_QUIET: Final = 64  # turns without a doorbell after which a host has to wake us
_SPUN: Final = 64  # empty turns between two checks of other descriptors
_SAID: Final = 50  # sentences of what a NIC waits for
_CREDENTIALS: Final = struct.Struct("3i")  # struct ucred: pid, uid, gid
_BELL: Final = select.EPOLLIN | select.EPOLLET  # edge-triggered, since it is never read


@dataclass(frozen=True, slots=True)
class Offer:
    """Configuration of a shared NIC. adapters: of its functions; the agent sets their incarnations. hosts: host processes of
    each function, at most as many as its protocol supports. heap: bytes for each host. worker: the agent's
    share of the interface's functions and frames. spin: nanoseconds to poll before
    sleeping, yielding in between. asked: path of a further socket that answers queries, without attaching. mtus: see
    `nodes.places.Orders`."""

    split_driver: SplitDriver
    ethertype: int
    device: str
    adapters: tuple[Adapter, ...]
    hosts: int = 1
    spin: int = 0
    heap: int = HEAP
    asked: Path | None = None
    mtus: Mapping[bytes, tuple[str, int]] = field(default_factory=dict)
    worker: Worker = ALONE


class SharedAgent:
    """The agent of an interface of this process's network namespace. Its construction raises OSError, ValueError."""

    def __init__(self, offer: Offer) -> None:
        if not 1 <= len(offer.adapters) <= MAX:
            raise ValueError(f"{len(offer.adapters)} functions of a NIC: 1 to {MAX}")
        if not 1 <= offer.hosts <= offer.split_driver.hosts:
            raise ValueError(f"{offer.hosts} host processes of one function: 1 to {offer.split_driver.hosts}")
        if not ORDERED:
            raise ValueError("a shared NIC needs a processor that keeps stores in order, as x86 does: use inline ones")
        self._offer = offer
        self._layout = Layout(
            1 << (offer.split_driver.max_in_flight - 1).bit_length(), offer.split_driver.descriptors, offer.heap
        )
        self._routed = offer.adapters[0].routed
        self._socket = socket_on(offer.device, offer.ethertype, offer.adapters[0].mtu, holding=self._routed)
        if offer.mtus:
            self._socket.count_oversized(offer.mtus)
        worker = offer.worker
        if worker.queues.count > 1:
            join_fanout(self._socket.socket, GROUP, worker.queues.program)
        own = [adapter for number, adapter in enumerate(offer.adapters) if worker.has(number)]
        addresses = [adapter.address for adapter in own]
        head = offer.adapters[0].address + offer.ethertype.to_bytes(2, "big")
        others = worker.others(offer.adapters)
        self._wire = Wire(port_on(self._socket, head if self._routed else b""), frozenset(addresses), others)
        started = incarnation()
        self._suspects: list[Attached] = []
        self._functions = [
            Function(adapter.with_incarnation(started), self._wire, offer.split_driver, self._suspects)
            for adapter in own
        ]
        self._turns_of: Counter[int] = Counter()
        """Number of hosts that each slot has had."""
        self._slots = [(function, host) for function in self._functions for host in range(offer.hosts)]
        self._by_address = dict(zip(addresses, self._functions, strict=True))
        self._awake: list[Attached] = []
        self._touched: set[Function] = set()
        self._due: int | None = None
        self._known: int | None = None  # the deadline that is set in the kernel
        self._turns = 0
        self._waiter = Waiter(0)
        self._strangers = 0  # connections that have not attached yet
        self._handlers: dict[int, Callable[[], object]] = {}
        self._inbox = worker.inbox
        self._frames = select.epoll()  # of the inbox; costs half of what poll does
        if self._inbox is not None:
            self._frames.register(self._inbox.fileno(), select.EPOLLIN)
        self._bells = select.epoll()  # separate, and watched by the other: an edge is reported once
        self._ringers: dict[int, Attached] = {}
        self.strangers = 0
        """Frames for none of the functions."""
        self.refused = 0
        """Host processes that were detached for misconduct."""
        self._listening = introduction.listening(offer.device, worker.number)
        self.watch(self._socket.fileno(), lambda: None)
        if self._inbox is not None:
            self.watch(self._inbox.fileno(), lambda: None)
        self.watch(self._listening.fileno(), partial(self._accept, self._listening))
        if offer.asked is not None:
            self._asked = calls.listening(offer.asked)
            self.watch(self._asked.fileno(), partial(self._accept, self._asked))
        self.watch(self._bells.fileno(), self._on_bell)

    # The loop

    def run(self) -> None:
        """Run the loop until the process ends."""
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
                    give_way()  # to a host that has just got something, if it shares this processor
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
            if not gave_way:  # a host that was woken, or that woke us, may be about to ring a doorbell
                gave_way = True
                give_way()
                continue
            if self._doze():
                self._handle(self._wake_by())
                until = now() + spin
                gave_way = False

    def _wake_by(self) -> int | None:
        """Return when the kernel shall wake us: at the next deadline, or at an earlier one that is set already. Most are put
        off before they come, and setting each would cost more than one useless wake-up."""
        known, due = self._known, self._due
        if known is None or known <= time.monotonic_ns() or (due is not None and due < known):
            self._known = known = due
        return known

    def _turn(self) -> bool:
        """Do a bounded share of everything that is pending; return whether there was anything."""
        next_frame, local = self._socket.next_frame, self._wire.local
        busy = False
        for _ in range(_FRAMES):
            frame = next_frame()
            if frame is None:
                break
            busy = True
            self._deliver(frame)
        if self._inbox is not None:
            busy |= self._deliver_inbox(self._inbox)
        if local:
            busy = True
            for _ in range(min(len(local), _FRAMES)):
                self._deliver(bytes(local.popleft()))
        self._turns = turns = self._turns + 1
        for host in self._awake:
            try:
                rung = host.doorbells.take(_DOORBELLS)
            except ProtocolViolationError as violation:
                host.function.suspect(host, str(violation))
                continue
            if rung:
                busy = True
                host.heard = turns
                self._touched.add(host.function)
                on_doorbell = host.on_doorbell
                try:
                    for index in rung:
                        on_doorbell(time.monotonic_ns(), index)
                except Exception as error:
                    raise self._failed(error, host.function) from error
        if self._suspects:
            self._refuse_suspects()
        if self._wire.later:
            self._wire.flush()
        return busy

    def _deliver_inbox(self, inbox: socket.socket) -> bool:
        """Deliver some frames that other workers have handed over; return whether there was one."""
        for number in range(_FRAMES):
            if not self._frames.poll(0):  # cheaper than BlockingIOError
                return number > 0
            self._deliver(inbox.recv(self._socket.max_frame, _DONTWAIT))
        return True

    def _deliver(self, frame: bytes) -> None:
        function = self._by_address.get(frame[:6])
        if function is None:
            if self._wire.hand_over(frame):
                return
            if self._wire.port.on_control_frame(frame):
                self._touched.update(self._functions)  # a frame that has left may start a timer of any firmware
                return
            if not (self._routed and frame[0] & 1):
                self.strangers += 1
                return
            function = self._functions[0]  # a source route leads to the NIC, whatever address a frame has
        self._touched.add(function)
        try:
            function.nic.firmware.receive(time.monotonic_ns(), frame)
        except Exception as error:
            raise self._failed(error, function) from error

    def _look(self, moment: int) -> None:
        """Check what turns do not: deadlines, other descriptors, and hosts that have become quiet."""
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
        """Tell all hosts that we sleep; return whether we may."""
        still = []
        for host in self._awake:
            if host.doorbells.doze():
                host.awake = False
            else:
                still.append(host)
        self._awake = still
        return not still

    def _on_bell(self) -> None:
        """Wake the hosts whose bell was rung."""
        for bell, _ in self._bells.poll(0):
            self._wake(self._ringers[bell])

    def _wake(self, host: Attached) -> None:
        """Poll a host's doorbells again."""
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
                try:
                    function.nic.firmware.on_timer(moment)
                    function.ticks.check(function.nic.firmware, moment)
                except Exception as error:
                    raise self._failed(error, function) from error
        if self._suspects:
            self._refuse_suspects()
        self._wire.on_timer(moment)
        self._ask_for_deadlines()
        self._wire.flush()

    def _failed(self, error: Exception, function: Function) -> FirmwareError:
        """Make the error that ends this process from one of a function's firmware, and send it to the function's hosts."""
        failed = failure(error, function.nic.firmware, None, time.monotonic_ns())
        for host in function.hosts:
            if host is not None:
                with contextlib.suppress(OSError):  # it is gone
                    introduction.send(host.connection, {"failed": failed.what, "when": failed.when})
        return failed

    def watch(self, descriptor: int, handler: Callable[[], object]) -> None:
        self._handlers[descriptor] = handler
        self._waiter.watch(descriptor)

    def _unwatch(self, descriptor: int) -> None:
        del self._handlers[descriptor]
        self._waiter.unwatch(descriptor)

    def _handle(self, deadline: int | None) -> None:
        """Wait for descriptors until the deadline, and call their handlers."""
        # Handlers are looked up first: one of them may close a descriptor, whose number another one gets at once.
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
        if user not in (0, os.geteuid()) or self._strangers >= MAX:
            connection.close()
            return
        self._strangers += 1
        self.watch(connection.fileno(), lambda: self._serve_stranger(connection, pid))

    def _serve_stranger(self, connection: socket.socket, pid: int) -> None:
        """Process the request of a connection that has not attached yet."""
        self._unwatch(connection.fileno())
        self._strangers -= 1
        try:
            request, handed = introduction.receive(connection, _DONTWAIT)
            for descriptor in handed:
                os.close(descriptor)
            if request is None:
                connection.close()
            elif request.get("do") == "report":
                introduction.send(
                    connection, {**self._nic_counts(), "hosts": self._hosts(), "counted": self._counted()}
                )
                connection.close()
            else:
                self._attach(connection, pid, request)
        except (OSError, ValueError):
            connection.close()

    def _attach(self, connection: socket.socket, pid: int, request: dict[str, Any]) -> None:
        offer, index = self._offer, request.get("function")
        wrong = ""
        if request.get("version") != introduction.VERSION or request.get("do") != "attach":
            wrong = "this agent speaks another version"
        elif request.get("ethertype") != offer.ethertype:
            wrong = f"this NIC's frames have EtherType 0x{offer.ethertype:04x}"
        elif index is None:
            slots = enumerate(self._slots)
            index = next((slot for slot, (function, host) in slots if function.hosts[host] is None), None)
            if index is None:
                wrong = f"all {len(self._slots)} functions of this NIC have a host process"
        elif not isinstance(index, int) or not 0 <= index < len(self._slots):
            wrong = f"this NIC has functions 0 to {len(self._slots) - 1}"
        elif self._slots[index][0].hosts[self._slots[index][1]] is not None:
            wrong = f"function {index} of this NIC has a host process"
        if wrong:
            introduction.send(connection, {"error": wrong})
            connection.close()
            return
        assert isinstance(index, int)
        self._begin(index, connection, pid)

    def _begin(self, slot: int, connection: socket.socket, pid: int) -> None:
        """Attach a host process to a slot. OSError when it is gone already."""
        layout = self._layout
        handle = os.pidfd_open(pid)
        bell = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        reading, writing = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        function, host_index = self._slots[slot]
        self._turns_of[slot] += 1
        memory = make_sealed(f"nic {self._offer.device} function {slot}", layout.size)
        host = Attached(Region(memory, layout), connection, pid, handle, bell, writing)
        adapter = function.nic.adapter
        try:
            introduction.send(
                connection,
                {
                    "entries": layout.entries, "descriptors": layout.descriptors, "heap": layout.heap,
                    "number": adapter.number, "addresses": [address.hex() for address in adapter.addresses],
                    "mtu": adapter.mtu, "incarnation": adapter.incarnation, "function": slot,
                    "place": (host_index, self._offer.hosts, self._turns_of[slot]),
                    "routed": adapter.routed, "ordered": adapter.ordered, "hosts": list(adapter.hosts),
                },
                (memory, bell, reading),
            )  # fmt: skip
        except OSError:
            host.close()
            return
        finally:
            os.close(memory)
            os.close(reading)
        function.attach(time.monotonic_ns(), host, host_index)
        self._touched.add(function)
        self.watch(connection.fileno(), lambda: self._serve_host(host))
        self.watch(handle, lambda: self._detach(host))
        self._ringers[bell] = host
        self._bells.register(bell, _BELL)
        self._wake(host)

    def _serve_host(self, host: Attached) -> None:
        """Process a query of an attached host, or its end."""
        function = host.function
        if function.hosts[host.place] is not host:
            return
        try:
            query, handed = introduction.receive(host.connection, _DONTWAIT)
            for descriptor in handed:
                os.close(descriptor)
            if query is None:
                self._detach(host)
            elif query.get("do") == "report":
                introduction.send(host.connection, self._report(function))
            elif query.get("do") == "waiting":
                introduction.send(host.connection, {"waiting": self._waiting(function)})
            else:
                raise ValueError("no question")
        except (OSError, ValueError) as error:
            self._refuse(host, f"it asks what cannot be answered: {error}")

    def _waiting(self, function: Function) -> list[str]:
        return [*function.nic.firmware.waiting()[:_SAID], *self._socket.oversized_sentences()[:_SAID]]

    def _report(self, function: Function) -> dict[str, Any]:
        """Make the report of one function, with the counts of the whole NIC."""
        return {"counted": dict(function.nic.firmware.counted()), **self._nic_counts()}

    def _counted(self) -> dict[str, int]:
        """Sum the firmware's counters over all functions."""
        totals: Counter[str] = Counter()
        for function in self._functions:
            totals.update(function.nic.firmware.counted())
        return dict(totals)

    def _hosts(self) -> dict[str, int]:
        """Return the pid of each slot's host process."""
        hosts = [function.hosts[index] for function, index in self._slots]
        return {str(slot): host.pid for slot, host in enumerate(hosts) if host is not None}

    def _nic_counts(self) -> dict[str, int]:
        """Return the counts of frames, and the processor time, of the whole NIC."""
        self._socket.update_counts()
        return {
            "pid": os.getpid(), "taken": self._socket.received, "dropped": self._socket.dropped,
            "unsent": self._wire.port.unsent, "down": self._wire.port.down, "cpu": time.process_time_ns(),
            "strangers": self.strangers, "refused": self.refused, "overflowed": self._wire.overflowed,
            "handed_over": self._wire.handed_over,
            "kept": self._wire.port.kept,
        }  # fmt: skip

    def _refuse_suspects(self) -> None:
        suspects = self._suspects.copy()
        self._suspects.clear()
        for host in suspects:
            self._refuse(host, host.suspect)

    def _refuse(self, host: Attached, reason: str) -> None:
        if host.function.hosts[host.place] is not host:
            return
        self.refused += 1
        sys.stderr.write(
            f"function {self._slots.index((host.function, host.place))}: its host process is refused: {reason}\n"
        )
        self._detach(host)

    def _detach(self, host: Attached) -> None:
        """Detach a host process: free its resources, and let the firmware notify its peers."""
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
    """Return an incarnation after that one: by the time, as any, or one more if that is later."""
    return max(incarnation(), former % 0xFFFF_FFFF + 1)
