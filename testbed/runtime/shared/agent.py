"""Agent of a shared NIC: a process that drives the firmware of all functions of one interface.

A turn handles some received frames, some frames between the functions, and some doorbells of every host process that is
awake, and sends deferred frames. Each part is bounded, so that no flood delays the others for long.

A host process is awake while the agent polls its doorbells. One that rings none for a while is not polled until it wakes the
agent, so that an attached idle host costs nothing. When there is nothing to do, the agent spins for its budget and then
sleeps.

No host process can end the agent or affect other host processes. A host that violates the protocol
(`ProtocolViolationError`) is detached like a host that has died: its function is then vacant, and the function's firmware
notifies the peers.
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
from testbed.runtime.nodes.veth_port import incarnation, make_port, open_socket
from testbed.runtime.shared import attach_protocol
from testbed.runtime.shared.functions import MAX_FUNCTIONS, AttachedHost, Function, Wire
from testbed.runtime.shared.region import Region, RegionLayout
from testbed.runtime.shared.rings import HAS_ORDERED_STORES, ProtocolViolationError
from testbed.runtime.shared.workers import FANOUT_GROUP, SINGLE_WORKER, Worker

HEAP_SIZE: Final = 512 << 20
"""Default bytes of pinned memory of a host process: more than the longest message. Unused pages take no memory."""

_DONTWAIT: Final = socket.MSG_DONTWAIT
_MAX_FRAMES: Final = 8  # frames of each source in a turn: wire, other workers, other functions
_MAX_DOORBELLS: Final = 8  # doorbells of one host in a turn
_CHECK_INTERVAL: Final = 200_000  # ns of busy turns after which deadlines and other descriptors are checked
_QUIET_TURNS: Final = 64  # turns without a doorbell after which a host has to wake the agent
_SPIN_TURNS: Final = 64  # empty turns between two checks of other descriptors
_MAX_SENTENCES: Final = 50  # sentences about what a NIC waits for
_CREDENTIALS: Final = struct.Struct("3i")  # struct ucred: pid, uid, gid
_EVENTFD_EVENTS: Final = select.EPOLLIN | select.EPOLLET  # edge-triggered, since the eventfd is never read


@dataclass(frozen=True, slots=True)
class NicConfig:
    """Configuration of a shared NIC. split_driver: protocol of the NIC. ethertype: EtherType of its frames. device: its
    interface. adapters: adapters of its functions; the agent sets their incarnations. hosts: maximum number of host
    processes of each function, at most as many as the protocol supports. spin: nanoseconds to poll before sleeping, while
    yielding the processor. heap: bytes of each host's heap. queries: path of a second socket, for queries without attaching,
    or None. mtus: see `nodes.run_orders.RunOrders`. worker: the agent's share of the interface's functions and frames."""

    split_driver: SplitDriver
    ethertype: int
    device: str
    adapters: tuple[Adapter, ...]
    hosts: int = 1
    spin: int = 0
    heap: int = HEAP_SIZE
    queries: Path | None = None
    mtus: Mapping[bytes, tuple[str, int]] = field(default_factory=dict)
    worker: Worker = SINGLE_WORKER


class SharedAgent:
    """The agent of an interface of this process's network namespace. unknown_frames: number of frames that are for none of
    its functions. refused: number of host processes that were detached for a violation of the protocol."""

    def __init__(self, config: NicConfig) -> None:
        """Open the interface, and listen for host processes. Raises OSError, ValueError."""
        if not 1 <= len(config.adapters) <= MAX_FUNCTIONS:
            raise ValueError(f"a NIC must have 1 to {MAX_FUNCTIONS} functions, got {len(config.adapters)}")
        if not 1 <= config.hosts <= config.split_driver.hosts:
            raise ValueError(
                f"a function must have 1 to {config.split_driver.hosts} host processes, got {config.hosts}"
            )
        if not HAS_ORDERED_STORES:
            raise ValueError("a shared NIC needs a processor that keeps stores in order, as x86 does: use inline NICs")
        self._config = config
        entries = 1 << (config.split_driver.max_in_flight - 1).bit_length()  # the next power of two
        self._layout = RegionLayout(entries, config.split_driver.descriptors, config.heap)
        self._routed = config.adapters[0].routed
        self._socket = open_socket(
            config.device, config.ethertype, config.adapters[0].mtu, flow_control=self._routed, polls_often=True
        )
        if config.mtus:
            self._socket.count_oversized(config.mtus)
        worker = config.worker
        if worker.queues.count > 1:
            join_fanout(self._socket.socket, FANOUT_GROUP, worker.queues.program)
        own_adapters = [adapter for number, adapter in enumerate(config.adapters) if worker.owns(number)]
        addresses = [adapter.address for adapter in own_adapters]
        control_header = config.adapters[0].address + config.ethertype.to_bytes(2, "big") if self._routed else b""
        port = make_port(self._socket, control_header)
        self._wire = Wire(port, frozenset(addresses), worker.other_inboxes(config.adapters))
        first_incarnation = incarnation()
        self._violators: list[AttachedHost] = []
        self._functions = [
            Function(adapter.with_incarnation(first_incarnation), self._wire, config.split_driver, self._violators)
            for adapter in own_adapters
        ]
        self._host_counts: Counter[int] = Counter()  # number of hosts that have attached to each slot
        self._slots = [(function, host) for function in self._functions for host in range(config.hosts)]
        self._by_address = dict(zip(addresses, self._functions, strict=True))
        self._awake: list[AttachedHost] = []
        self._touched: set[Function] = set()  # functions whose deadline may have changed
        self._due: int | None = None
        self._wakeup: int | None = None  # the deadline that is set in the kernel
        self._turns = 0
        self._waiter = Waiter(0)
        self._pending = 0  # number of connections that have not attached yet
        self._handlers: dict[int, Callable[[], object]] = {}
        self._inbox = worker.inbox
        self._inbox_epoll = select.epoll()  # takes half the time of poll
        if self._inbox is not None:
            self._inbox_epoll.register(self._inbox.fileno(), select.EPOLLIN)
        self._eventfds = select.epoll()  # nested in the waiter's epoll, since an edge is reported once
        self._hosts_by_eventfd: dict[int, AttachedHost] = {}
        self.unknown_frames = 0
        self.refused = 0
        self._listener = attach_protocol.listen(config.device, worker.number)
        self.watch(self._socket.fileno(), lambda: None)
        if self._inbox is not None:
            self.watch(self._inbox.fileno(), lambda: None)
        self.watch(self._listener.fileno(), partial(self._accept, self._listener))
        if config.queries is not None:
            self._query_listener = calls.listen(config.queries)
            self.watch(self._query_listener.fileno(), partial(self._accept, self._query_listener))
        self.watch(self._eventfds.fileno(), self._on_eventfds)

    # The loop

    def run(self) -> None:
        """Run the loop until the process ends."""
        now, spin, sched_yield = time.monotonic_ns, self._config.spin, os.sched_yield
        checked = until = now()
        spin_turns = 0
        has_yielded = False
        while True:
            if self._turn():
                has_yielded = False
                moment = now()
                until = moment + spin
                if moment - checked > _CHECK_INTERVAL:
                    checked = moment
                    self._check(moment)
                if spin:
                    sched_yield()  # to a host with new completions, if it shares this processor
                continue
            moment = now()
            if self._touched:
                self._update_deadlines()
            if self._due is not None and self._due <= moment:
                self._on_timer(moment)
                continue
            if moment < until:
                spin_turns += 1
                if not spin_turns % _SPIN_TURNS:
                    self._check(moment)
                sched_yield()
                continue
            if not has_yielded:  # a host that was woken, or that has woken the agent, may be about to ring a doorbell
                has_yielded = True
                sched_yield()
                continue
            if self._announce_sleep():
                self._handle(self._wakeup_time())
                until = now() + spin
                has_yielded = False

    def _wakeup_time(self) -> int | None:
        """Return the time at which the kernel shall wake the agent: the next deadline, or an earlier one that is already
        set. Most deadlines are postponed before they come; one unneeded wake-up costs less than setting each deadline."""
        wakeup, due = self._wakeup, self._due
        if wakeup is None or wakeup <= time.monotonic_ns() or (due is not None and due < wakeup):
            self._wakeup = wakeup = due
        return wakeup

    def _turn(self) -> bool:
        """Handle a bounded part of all pending frames and doorbells; return whether there were any."""
        next_frame, local = self._socket.next_frame, self._wire.local
        busy = False
        for _ in range(_MAX_FRAMES):
            frame = next_frame()
            if frame is None:
                break
            busy = True
            self._deliver(frame)
        if self._inbox is not None:
            busy |= self._deliver_inbox(self._inbox)
        if local:
            busy = True
            for _ in range(min(len(local), _MAX_FRAMES)):
                self._deliver(bytes(local.popleft()))
        self._turns = turns = self._turns + 1
        for host in self._awake:
            try:
                indexes = host.doorbells.take(_MAX_DOORBELLS)
            except ProtocolViolationError as violation:
                host.function.report_violation(host, str(violation))
                continue
            if indexes:
                busy = True
                host.last_turn = turns
                self._touched.add(host.function)
                on_doorbell = host.on_doorbell
                try:
                    for index in indexes:
                        on_doorbell(time.monotonic_ns(), index)
                except Exception as error:
                    raise self._firmware_error(error, host.function) from error
        if self._violators:
            self._refuse_violators()
        if self._wire.deferred:
            self._wire.flush()
        return busy

    def _deliver_inbox(self, inbox: socket.socket) -> bool:
        """Deliver some frames that other workers have handed over; return whether there were any."""
        for number in range(_MAX_FRAMES):
            if not self._inbox_epoll.poll(0):  # cheaper than BlockingIOError
                return number > 0
            self._deliver(inbox.recv(self._socket.max_frame, _DONTWAIT))
        return True

    def _deliver(self, frame: bytes) -> None:
        """Deliver a frame to the function, worker or port that it is for."""
        function = self._by_address.get(frame[:6])
        if function is None:
            if self._wire.hand_over(frame):
                return
            if self._wire.port.on_control_frame(frame):
                # Waiting frames may have left, whereupon any firmware may have started a timer.
                self._touched.update(self._functions)
                return
            if not (self._routed and frame[0] & 1):
                self.unknown_frames += 1
                return
            function = self._functions[0]  # a source-routed group frame that arrives here is for this NIC
        self._touched.add(function)
        try:
            function.nic.firmware.receive(time.monotonic_ns(), frame)
        except Exception as error:
            raise self._firmware_error(error, function) from error

    def _check(self, moment: int) -> None:
        """Check deadlines and other descriptors, which turns do not check, and stop polling quiet hosts."""
        if self._touched:
            self._update_deadlines()
        if self._due is not None and self._due <= moment:
            self._on_timer(moment)
        self._awake = [host for host in self._awake if self._stays_awake(host)]
        self._handle(moment)

    def _stays_awake(self, host: AttachedHost) -> bool:
        if self._turns - host.last_turn > _QUIET_TURNS and host.doorbells.announce_sleep():
            host.is_awake = False
        return host.is_awake

    def _announce_sleep(self) -> bool:
        """Announce to all hosts that the agent sleeps; return whether it may: no host has rung a doorbell meanwhile."""
        awake = []
        for host in self._awake:
            if host.doorbells.announce_sleep():
                host.is_awake = False
            else:
                awake.append(host)
        self._awake = awake
        return not awake

    def _on_eventfds(self) -> None:
        """Poll the hosts that have woken the agent."""
        for eventfd, _ in self._eventfds.poll(0):
            self._wake(self._hosts_by_eventfd[eventfd])

    def _wake(self, host: AttachedHost) -> None:
        """Poll a host's doorbells again."""
        if not host.is_awake:
            host.doorbells.end_sleep()
            host.is_awake = True
            host.last_turn = self._turns
            self._awake.append(host)

    def _update_deadlines(self) -> None:
        for function in self._touched:
            function.deadline = function.nic.firmware.deadline
        self._touched.clear()
        deadlines = [function.deadline for function in self._functions if function.deadline is not None]
        if self._wire.deadline is not None:
            deadlines.append(self._wire.deadline)
        self._due = min(deadlines, default=None)

    def _on_timer(self, moment: int) -> None:
        """Call `on_timer` of the firmware whose deadline has come, and of the port."""
        for function in self._functions:
            if function.deadline is not None and function.deadline <= moment:
                self._touched.add(function)
                try:
                    function.nic.firmware.on_timer(moment)
                    function.ticks.check(function.nic.firmware, moment)
                except Exception as error:
                    raise self._firmware_error(error, function) from error
        if self._violators:
            self._refuse_violators()
        self._wire.on_timer(moment)
        self._update_deadlines()
        self._wire.flush()

    def _firmware_error(self, error: Exception, function: Function) -> FirmwareError:
        """Make the error that ends this process from an error of a function's firmware, and send it to the function's
        hosts."""
        firmware_error = failure(error, function.nic.firmware, None, time.monotonic_ns())
        for host in function.hosts:
            if host is not None:
                with contextlib.suppress(OSError):  # the host has ended
                    message = {"failed": firmware_error.what, "when": firmware_error.when}
                    attach_protocol.send(host.connection, message)
        return firmware_error

    def watch(self, descriptor: int, handler: Callable[[], object]) -> None:
        """Call `handler` in the loop whenever a descriptor is readable."""
        self._handlers[descriptor] = handler
        self._waiter.watch(descriptor)

    def _unwatch(self, descriptor: int) -> None:
        del self._handlers[descriptor]
        self._waiter.unwatch(descriptor)

    def _handle(self, deadline: int | None) -> None:
        """Wait for descriptors until the deadline, and call their handlers."""
        # Handlers are looked up first: a handler may close a descriptor, whose number may be used again at once.
        for handler in [self._handlers[descriptor] for descriptor in self._waiter.wait(deadline)]:
            handler()

    # Host processes

    def _accept(self, listener: socket.socket) -> None:
        try:
            connection, _ = listener.accept()
        except BlockingIOError:  # the client has closed the connection
            return
        pid, user, _ = _CREDENTIALS.unpack(
            connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        )
        if user not in (0, os.geteuid()) or self._pending >= MAX_FUNCTIONS:
            connection.close()
            return
        self._pending += 1
        self.watch(connection.fileno(), lambda: self._handle_request(connection, pid))

    def _handle_request(self, connection: socket.socket, pid: int) -> None:
        """Handle the first request on a connection: a query, or the attachment of the process `pid`."""
        self._unwatch(connection.fileno())
        self._pending -= 1
        try:
            request, descriptors = attach_protocol.receive(connection, _DONTWAIT)
            for descriptor in descriptors:
                os.close(descriptor)
            if request is None:
                connection.close()
            elif request.get("do") == "report":
                report = {**self._nic_counts(), "hosts": self._host_pids(), "counted": self._total_counters()}
                attach_protocol.send(connection, report)
                connection.close()
            else:
                self._attach(connection, pid, request)
        except (OSError, ValueError):
            connection.close()

    def _attach(self, connection: socket.socket, pid: int, request: dict[str, Any]) -> None:
        """Attach a host process, or send it the reason why it cannot attach. Raises OSError when it has ended."""
        config, index = self._config, request.get("function")
        problem = ""
        if request.get("version") != attach_protocol.VERSION or request.get("do") != "attach":
            problem = f"this agent only supports version {attach_protocol.VERSION} of the protocol"
        elif request.get("ethertype") != config.ethertype:
            problem = f"this NIC's frames have EtherType 0x{config.ethertype:04x}"
        elif index is None:
            slots = enumerate(self._slots)
            index = next((slot for slot, (function, host) in slots if function.hosts[host] is None), None)
            if index is None:
                problem = f"this NIC is for {len(self._slots)} host processes, which have all attached: end one of them"
        elif not isinstance(index, int) or not 0 <= index < len(self._slots):
            problem = f"this NIC has functions 0 to {len(self._slots) - 1}, got {index!r}"
        elif self._slots[index][0].hosts[self._slots[index][1]] is not None:
            problem = f"function {index} of this NIC already has a host process"
        if problem:
            attach_protocol.send(connection, {"error": problem})
            connection.close()
            return
        assert isinstance(index, int)
        self._attach_to(index, connection, pid)

    def _attach_to(self, slot: int, connection: socket.socket, pid: int) -> None:
        """Attach a host process to a slot. slot: index in `_slots`. Raises OSError when the process has ended."""
        layout = self._layout
        pidfd = os.pidfd_open(pid)
        eventfd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        reading, writing = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        function, host_index = self._slots[slot]
        self._host_counts[slot] += 1
        memory = make_sealed(f"nic {self._config.device} function {slot}", layout.size)
        host = AttachedHost(Region(memory, layout), connection, pid, pidfd, eventfd, writing)
        adapter = function.nic.adapter
        try:
            attach_protocol.send(
                connection,
                {
                    "entries": layout.entries, "descriptors": layout.descriptors, "heap": layout.heap,
                    "number": adapter.number, "addresses": [address.hex() for address in adapter.addresses],
                    "mtu": adapter.mtu, "incarnation": adapter.incarnation, "function": slot,
                    "place": (host_index, self._config.hosts, self._host_counts[slot]),
                    "routed": adapter.routed, "ordered": adapter.ordered, "hosts": list(adapter.hosts),
                    "names": list(adapter.names),
                },
                (memory, eventfd, reading),
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
        self.watch(pidfd, lambda: self._detach(host))
        self._hosts_by_eventfd[eventfd] = host
        self._eventfds.register(eventfd, _EVENTFD_EVENTS)
        self._wake(host)

    def _serve_host(self, host: AttachedHost) -> None:
        """Handle a query of an attached host, or its end."""
        function = host.function
        if function.hosts[host.slot] is not host:
            return
        try:
            query, descriptors = attach_protocol.receive(host.connection, _DONTWAIT)
            for descriptor in descriptors:
                os.close(descriptor)
            if query is None:
                self._detach(host)
            elif query.get("do") == "report":
                attach_protocol.send(host.connection, self._report(function))
            elif query.get("do") == "waiting":
                attach_protocol.send(host.connection, {"waiting": self._pending_work(function)})
            else:
                raise ValueError(f"unknown query {query.get('do')!r}")
        except (OSError, ValueError) as error:
            self._refuse(host, f"its query cannot be answered: {error}")

    def _pending_work(self, function: Function) -> list[str]:
        """Return sentences about lost oversized frames, and about what a function waits for."""
        return [
            *self._socket.oversized_sentences()[:_MAX_SENTENCES],
            *function.nic.firmware.pending_work()[:_MAX_SENTENCES],
        ]

    def _report(self, function: Function) -> dict[str, Any]:
        """Make the report of one function, including the counts of the complete NIC."""
        return {"counted": dict(function.nic.firmware.counter_values()), **self._nic_counts()}

    def _total_counters(self) -> dict[str, int]:
        """Sum the firmware's counters over all functions."""
        totals: Counter[str] = Counter()
        for function in self._functions:
            totals.update(function.nic.firmware.counter_values())
        return dict(totals)

    def _host_pids(self) -> dict[str, int]:
        """Return the pids of the attached host processes, by slot."""
        hosts = [function.hosts[index] for function, index in self._slots]
        return {str(slot): host.pid for slot, host in enumerate(hosts) if host is not None}

    def _nic_counts(self) -> dict[str, int]:
        """Return the counts of frames of the complete NIC, and the agent's pid and processor time."""
        self._socket.update_counts()
        return {
            "pid": os.getpid(), "taken": self._socket.received, "dropped": self._socket.dropped,
            "unsent": self._wire.port.unsent, "down": self._wire.port.down, "cpu": time.process_time_ns(),
            "strangers": self.unknown_frames, "refused": self.refused, "overflowed": self._wire.overflowed,
            "handed_over": self._wire.handed_over,
            "kept": self._wire.port.frames_waiting,
        }  # fmt: skip

    def _refuse_violators(self) -> None:
        violators = self._violators.copy()
        self._violators.clear()
        for host in violators:
            self._refuse(host, host.violation)

    def _refuse(self, host: AttachedHost, reason: str) -> None:
        """Detach a host process for a violation of the protocol, and log the reason."""
        if host.function.hosts[host.slot] is not host:
            return
        self.refused += 1
        sys.stderr.write(
            f"function {self._slots.index((host.function, host.slot))}: its host process is detached: {reason}\n"
        )
        self._detach(host)

    def _detach(self, host: AttachedHost) -> None:
        """Detach a host process: free its resources, and let the firmware notify its peers."""
        function = host.function
        if function.hosts[host.slot] is not host:
            return
        self._unwatch(host.connection.fileno())
        self._unwatch(host.pidfd)
        self._eventfds.unregister(host.eventfd)
        del self._hosts_by_eventfd[host.eventfd]
        if host.is_awake:
            self._awake.remove(host)
        function.detach(time.monotonic_ns(), host, _next_incarnation(function.nic.adapter.incarnation))
        self._touched.add(function)
        self._wire.flush()


def _next_incarnation(previous: int) -> int:
    """Return an incarnation after `previous`: that of a NIC that starts now, or `previous` plus one if that is later."""
    return max(incarnation(), previous % 0xFFFF_FFFF + 1)
