"""Attachment of a host process to a shared NIC, and the driver of its program's loop.

While tasks wait, the driver polls the ring of completions, and a task that a completion wakes runs at once, as with an
inline NIC (`testbed.runtime.nodes.inline_driver`). When there is no completion, the driver spins for its budget,
announces its sleep, and sleeps. While tasks poll, each poll takes the pending completions and returns.
"""

from __future__ import annotations

import os
import select
import socket
import time
from collections.abc import Sequence
from typing import Any, Final

from protocols.core.firmware import Adapter, Host
from protocols.core.split_memory import HostSlot, SplitDriver
from testbed.engine.failures import failure
from testbed.engine.loop import Loop
from testbed.errors import FirmwareError
from testbed.kernel.waiter import Waiter
from testbed.runtime.nodes.patience import Patience, PollPause
from testbed.runtime.shared import attach_protocol
from testbed.runtime.shared.attach_protocol import AttachError, NicGoneError
from testbed.runtime.shared.heap import Heap
from testbed.runtime.shared.region import Region, RegionLayout
from testbed.runtime.shared.rings import Reader, Writer

_MAX_BATCH: Final = 64  # completions to take at a time
_MAX_POLLED: Final = 1024  # maximum completions in a poll
_CHECK_INTERVAL: Final = 64  # turns of the loop, or polls, after which agent and other descriptors are checked
_MAX_WAKEUPS: Final = 4096  # bytes to read from the wake-up pipe; each is a wake-up
_REPLY_TIMEOUT: Final = 10.0  # s
_STATE_TIMEOUT: Final = 0.5  # s for the agent to report what the NIC waits for


class Attachment:
    """Attachment of this process to a function of a NIC, until `close` or the process's end. Implements the host library's
    `HostActions`.

    adapter, function: adapter and index of the function. heap: the host's pinned memory. completions: ring of completions.
    host: the host library. wake_pipe: descriptor that is readable when the agent has woken this process.
    """

    def __init__(
        self, device: str, ethertype: int, split_driver: SplitDriver, function: int | None = None, worker: int = 0
    ) -> None:
        """device: an interface of this process's network namespace. function: index among the functions of the worker; None:
        any free function. worker: number of the agent's worker. Raises AttachError."""
        self._is_querying = False
        self._late_replies = 0  # that have not arrived within the timeouts of their queries, and may still arrive
        self._connection = attach_protocol.connect(device, worker)
        try:
            request = {"do": "attach", "version": attach_protocol.VERSION, "ethertype": ethertype, "function": function}
            reply, descriptors = self._query(request)
        except (NicGoneError, ValueError) as error:
            self._connection.close()
            raise AttachError(str(error)) from error
        except BaseException:
            self._connection.close()
            raise
        if "error" in reply:
            self._connection.close()
            raise AttachError(f"{device}: {reply['error']}")
        memory, self._eventfd, self.wake_pipe = descriptors
        region = Region(memory, RegionLayout(reply["entries"], reply["descriptors"], reply["heap"]))
        os.close(memory)
        self.adapter: Final = Adapter(
            reply["number"],
            tuple(bytes.fromhex(address) for address in reply["addresses"]),
            reply["mtu"],
            reply["incarnation"],
            routed=reply["routed"],
            ordered=reply["ordered"],
            hosts=tuple(reply["hosts"]),
            names=tuple(reply["names"]),
        )
        self.function: Final[int] = reply["function"]
        self.heap: Final = Heap(region.heap)
        self.completions: Final = Reader(region.completions.words, region.completions.numbers)
        self._doorbells = Writer(region.doorbells.words, region.doorbells.numbers, self._wake)
        self.host: Final = split_driver.host(
            self.adapter, self, self.heap, region.descriptors, HostSlot(*reply["place"])
        )

    def fileno(self) -> int:
        """Return a descriptor that is readable when the agent has ended or has sent its error."""
        return self._connection.fileno()

    def close(self) -> None:
        """Detach from the NIC: operations in progress end, and the firmware notifies the peers."""
        self._connection.close()
        os.close(self._eventfd)
        os.close(self.wake_pipe)

    def ring_doorbell(self, index: int, written: int, translated: int) -> None:  # noqa: ARG002  costs are not modelled here
        put = self._doorbells.put
        while not put(index):  # the ring is full until the agent takes doorbells
            self.check_agent()
            os.sched_yield()

    def check_agent(self) -> None:
        """Check that the agent runs. Raises NicGoneError when it has ended or has detached this process, FirmwareError when
        it has sent its error."""
        try:
            if self._connection.recv(1, socket.MSG_DONTWAIT | socket.MSG_PEEK):
                self._check(attach_protocol.receive(self._connection, socket.MSG_DONTWAIT)[0])
                self._late_replies -= 1  # a message without an error is a reply, and no query waits for one
            else:
                raise NicGoneError("the agent of the NIC has ended, or has refused this process")
        except BlockingIOError:
            pass
        except ConnectionError as error:
            raise NicGoneError(f"the agent of the NIC has ended: {error}") from error

    def report(self) -> dict[str, Any]:
        """Ask the agent for its report. Raises NicGoneError, and FirmwareError if the agent sends its error instead."""
        return self._query({"do": "report"})[0]

    def pending_work(self) -> list[str]:
        """Ask the agent for sentences about what the NIC waits for. Can be called in a signal handler, also during another
        query. Raises the errors of `report`."""
        if self._is_querying:
            return ["its agent is handling another query"]
        return [str(sentence) for sentence in self._query({"do": "waiting"}, _STATE_TIMEOUT)[0]["waiting"]]

    def _query(self, query: dict[str, Any], timeout: float = _REPLY_TIMEOUT) -> tuple[dict[str, Any], list[int]]:
        """Send a query; return the reply and the descriptors passed with it. timeout: seconds. The late replies of earlier
        queries, which arrive first, are discarded. Raises the errors of `report`."""
        self._is_querying = True
        try:
            attach_protocol.send(self._connection, query)
            poll = select.poll()
            poll.register(self._connection, select.POLLIN)
            deadline = time.monotonic() + timeout
            while True:
                if not poll.poll(max(0.0, deadline - time.monotonic()) * 1000):
                    self._late_replies += 1
                    raise NicGoneError(f"the agent of the NIC has not answered within {timeout:g} s")
                reply, descriptors = attach_protocol.receive(self._connection)
                message = self._check(reply)
                if not self._late_replies:
                    return message, descriptors
                self._late_replies -= 1
        except OSError as error:
            raise NicGoneError(f"the agent of the NIC has ended: {error}") from error
        finally:
            self._is_querying = False

    def _check(self, message: dict[str, Any] | None) -> dict[str, Any]:
        """Return a message of the agent. Raises NicGoneError for None, FirmwareError for a message with the agent's
        error."""
        if message is None:
            raise NicGoneError("the agent of the NIC has ended, or has refused this process")
        if "failed" in message:
            raise FirmwareError(message["failed"], message["when"])
        return message

    def _wake(self) -> None:
        os.eventfd_write(self._eventfd, 1)


class HostDriver:
    """Driver of the loop of a host's program, on the machine's monotonic clock.

    spin: nanoseconds to poll for a completion before sleeping, while yielding the processor.
    """

    def __init__(self, nic: Attachment, host: Host, spin: int = 0) -> None:
        """nic: attachment to the NIC. host: the host library that gets the completions."""
        self.loop = Loop(self)
        self.spin = spin
        self._nic = nic
        self._host = host
        self._others = select.poll()
        self._pause = PollPause(Patience(0))  # without spins, which might keep the processor from the agent
        self._polls = 0
        self._waiter = Waiter(0)
        self._waiter.watch(nic.wake_pipe)
        self._waiter.watch(nic.fileno())

    def set_host(self, host: Host) -> None:
        """Set another host library to get the completions. Call it before the first completion."""
        self._host = host

    def close(self) -> None:
        self.loop.close()
        self._waiter.close()

    # The loop's waiter

    def now(self) -> int:
        return time.monotonic_ns()

    def watch(self, descriptor: int) -> None:
        self._others.register(descriptor, select.POLLIN)
        self._waiter.watch(descriptor)

    def unwatch(self, descriptor: int) -> None:
        self._others.unregister(descriptor)
        self._waiter.unwatch(descriptor)

    def wait(self, deadline: int | None) -> Sequence[int]:
        """Take completions, and run the tasks that they wake, until a watched descriptor is ready or the deadline has come;
        return the ready descriptors. Raises NicGoneError, and FirmwareError for an error of firmware or host library."""
        nic, loop, on_completion, now = self._nic, self.loop, self._host.on_completion, time.monotonic_ns
        polling = loop.polling
        if polling:
            return self._poll()
        take, announce_sleep = nic.completions.take, nic.completions.announce_sleep
        woken, events = loop.woken, loop.events.entries
        until, turns, sched_yield, has_yielded = now() + self.spin, 0, os.sched_yield, False
        while True:
            indexes = take(_MAX_BATCH)
            turns += 1
            if indexes:
                try:
                    for index in indexes:
                        on_completion(index)
                except Exception as error:
                    raise self._library_error(error) from error
                if woken:
                    loop.run_woken(now())
                    # Otherwise only a completion or a watched descriptor can wake a task.
                    if woken or events or polling or not loop.running:
                        return ()
                until, has_yielded = now() + self.spin, False
            if not turns % _CHECK_INTERVAL:
                self._check_agent()
                if not loop.running:
                    return ()
                if ready := [descriptor for descriptor, _ in self._others.poll(0)]:
                    return ready
            if indexes:
                continue
            moment = now()
            if woken or (deadline is not None and deadline <= moment):
                return ()
            if moment < until:
                sched_yield()  # to the agent, if it shares this processor
                continue
            if not has_yielded:  # the agent may be about to post a completion
                has_yielded = True
                sched_yield()
                continue
            if not announce_sleep():
                continue
            if ready := self._sleep(deadline):
                return ready
            if not loop.running:
                return ()
            until, has_yielded = now() + self.spin, False

    def _poll(self) -> Sequence[int]:
        """Take the pending completions before a program that polls runs again. If there are none, sleep until an event or a
        deadline, so that the agent and other processes run. Raises the errors of `wait`."""
        self._polls += 1
        if not self._polls % _CHECK_INTERVAL:
            self._check_agent()
        had_completions = self._take_completions()
        ready = [descriptor for descriptor, _ in self._others.poll(0)]
        moment = time.monotonic_ns()
        if had_completions or ready or self.loop.woken:
            self._pause.poll_succeeded()
        elif (end := self._pause.poll_failed(moment)) is not None and self._nic.completions.announce_sleep():
            due = self.loop.events.next_time()
            ready = self._sleep(end if due is None else min(end, due))
            if self._take_completions() or ready:
                self._pause.poll_succeeded()
            self._pause.sleep_ended()
        return ready

    def _library_error(self, error: Exception) -> FirmwareError:
        return failure(error, None, self._host, time.monotonic_ns())

    def _take_completions(self) -> bool:
        """Pass the pending completions to the host library; return whether there were any."""
        indexes = self._nic.completions.take(_MAX_POLLED)
        try:
            for index in indexes:
                self._host.on_completion(index)
        except Exception as error:
            raise self._library_error(error) from error
        return bool(indexes)

    def _sleep(self, deadline: int | None) -> list[int]:
        """Sleep until the agent wakes this process, the deadline has come, or other descriptors are ready; return the
        latter."""
        nic = self._nic
        ready = [*self._waiter.wait(deadline)]
        nic.completions.end_sleep()
        if nic.wake_pipe in ready:
            ready.remove(nic.wake_pipe)
            os.read(nic.wake_pipe, _MAX_WAKEUPS)
        if nic.fileno() in ready:
            ready.remove(nic.fileno())
            self._check_agent()
        return ready

    def _check_agent(self) -> None:
        """Check that the agent runs. Completions that it posted before its end are still delivered, since peers may already
        know of them. Raises NicGoneError, unless these completions end the program, and FirmwareError when the agent has
        sent its error."""
        try:
            self._nic.check_agent()
        except NicGoneError:
            loop = self.loop
            while loop.running and (indexes := self._nic.completions.take(_MAX_BATCH)):
                for index in indexes:
                    self._host.on_completion(index)
                while loop.woken and loop.running:
                    loop.run_woken(time.monotonic_ns())
            if loop.running:
                raise
