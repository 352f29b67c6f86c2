"""Attachment of a host process to a shared NIC, and the driver of its program's loop.

While tasks wait, the ring of completions is polled, and a task that a completion wakes runs at once, as beside an inline
NIC (`testbed.runtime.nodes.inline_driver`). When there is none, the driver spins for its budget, announces its sleep, and
sleeps. While tasks poll, each poll takes the pending completions and returns.
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
from testbed.runtime.shared import introduction
from testbed.runtime.shared.heap import Heap
from testbed.runtime.shared.introduction import AttachError, NicGoneError
from testbed.runtime.shared.region import Layout, Region
from testbed.runtime.shared.rings import Reader, Writer

_TAKEN: Final = 64  # completions at a time
_POLLED: Final = 1024  # maximum of completions in a poll
_LOOK: Final = 64  # turns of the loop after which other descriptors are checked
_DRAINED: Final = 4096  # bytes
_ANSWER: Final = 10.0  # s for the agent to answer
_SOON: Final = 0.5  # s for the agent to say what it waits for


class Attachment:
    """This process's function of a NIC, until `close` or the process's end. Implements the host library's `HostActions`."""

    def __init__(
        self, device: str, ethertype: int, split_driver: SplitDriver, function: int | None = None, worker: int = 0
    ) -> None:
        """device: an interface of this process's network namespace. function: its number, among the worker's; None: any that
        is free. Raises AttachError."""
        self._asking = False
        self._connection = introduction.connected(device, worker)
        try:
            request = {"do": "attach", "version": introduction.VERSION, "ethertype": ethertype, "function": function}
            answer, handed = self._ask(request)
        except (NicGoneError, ValueError) as error:
            self._connection.close()
            raise AttachError(str(error)) from error
        except BaseException:
            self._connection.close()
            raise
        if "error" in answer:
            self._connection.close()
            raise AttachError(f"{device}: {answer['error']}")
        memory, self._bell, self.woken = handed
        region = Region(memory, Layout(answer["entries"], answer["descriptors"], answer["heap"]))
        os.close(memory)
        self.adapter: Final = Adapter(
            answer["number"],
            tuple(bytes.fromhex(address) for address in answer["addresses"]),
            answer["mtu"],
            answer["incarnation"],
            routed=answer["routed"],
            ordered=answer["ordered"],
            hosts=tuple(answer["hosts"]),
        )
        self.function: Final[int] = answer["function"]
        self.heap: Final = Heap(region.heap)
        self.completions: Final = Reader(region.completions.words, region.completions.numbers)
        self._doorbells = Writer(region.doorbells.words, region.doorbells.numbers, self._wake)
        self.host: Final = split_driver.host(
            self.adapter, self, self.heap, region.descriptors, HostSlot(*answer["place"])
        )

    def fileno(self) -> int:
        """Return a descriptor that is readable when the agent is gone."""
        return self._connection.fileno()

    def close(self) -> None:
        """Detach: operations in progress end, and the agent notifies the peers."""
        self._connection.close()
        os.close(self._bell)
        os.close(self.woken)

    def ring_doorbell(self, index: int, written: int, translated: int) -> None:  # noqa: ARG002  here they cost what they cost
        put = self._doorbells.put
        while not put(index):  # the ring is full, until the agent takes some
            self.check_agent()
            os.sched_yield()

    def check_agent(self) -> None:
        """Check the agent. Raises NicGoneError when it is gone, FirmwareError when it has sent its error."""
        try:
            if self._connection.recv(1, socket.MSG_DONTWAIT | socket.MSG_PEEK):
                self._heard(introduction.receive(self._connection)[0])
            else:
                raise NicGoneError("the agent of the NIC has ended, or has refused this process")
        except BlockingIOError:
            pass
        except ConnectionError as error:
            raise NicGoneError(f"the agent of the NIC has ended: {error}") from error

    def report(self) -> dict[str, Any]:
        """Ask the agent for its report. Raises NicGoneError."""
        return self._ask({"do": "report"})[0]

    def waiting(self) -> list[str]:
        """Ask the agent for sentences about what the NIC waits for; may be called in a signal handler. Raises
        NicGoneError."""
        if self._asking:
            return ["its agent is being asked something else"]
        return [str(sentence) for sentence in self._ask({"do": "waiting"}, _SOON)[0]["waiting"]]

    def _ask(self, query: dict[str, Any], patience: float = _ANSWER) -> tuple[dict[str, Any], list[int]]:
        self._asking = True
        try:
            introduction.send(self._connection, query)
            waiting = select.poll()
            waiting.register(self._connection, select.POLLIN)
            if not waiting.poll(patience * 1000):
                raise NicGoneError(f"the agent of the NIC has not answered within {patience:g} s")
            answer, handed = introduction.receive(self._connection)
        except OSError as error:
            raise NicGoneError(f"the agent of the NIC has ended: {error}") from error
        finally:
            self._asking = False
        return self._heard(answer), handed

    def _heard(self, message: dict[str, Any] | None) -> dict[str, Any]:
        if message is None:
            raise NicGoneError("the agent of the NIC has ended, or has refused this process")
        if "failed" in message:
            raise FirmwareError(message["failed"], message["when"])
        return message

    def _wake(self) -> None:
        os.eventfd_write(self._bell, 1)


class HostDriver:
    """Driver of the loop of a host's program, on the machine's monotonic clock.

    spin: nanoseconds to poll for a completion before sleeping, yielding in between.
    """

    def __init__(self, nic: Attachment, host: Host, spin: int = 0) -> None:
        """host: the host library that gets the completions."""
        self.loop = Loop(self)
        self.spin = spin
        self._nic = nic
        self._host = host
        self._others = select.poll()
        self._pause = PollPause(Patience(0))  # a spin might keep the agent from the processor
        self._polls = 0
        self._waiter = Waiter(0)
        self._waiter.watch(nic.woken)
        self._waiter.watch(nic.fileno())

    def set_host(self, host: Host) -> None:
        """Let another host library get the completions, before the first one."""
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
        """Take completions, and run the tasks that they wake, until a watched descriptor is ready or the deadline has come.
        Raises NicGoneError."""
        nic, loop, completed, now = self._nic, self.loop, self._host.completed, time.monotonic_ns
        polling = loop.polling
        if polling:
            return self._poll()
        take, doze, woken, heap = nic.completions.take, nic.completions.doze, loop.woken, loop.heap
        until, looks, give_way, gave_way = now() + self.spin, 0, os.sched_yield, False
        while True:
            shown = take(_TAKEN)
            looks += 1
            if shown:
                try:
                    for index in shown:
                        completed(index)
                except Exception as error:
                    raise self._failed(error) from error
                if woken:
                    loop.run_woken()
                    # Else only a completion or a watched descriptor can wake a task.
                    if woken or heap or polling or not loop.running:
                        return ()
                until, gave_way = now() + self.spin, False
            if not looks % _LOOK:
                self._look()
                if not loop.running:
                    return ()
                if ready := [descriptor for descriptor, _ in self._others.poll(0)]:
                    return ready
            if shown:
                continue
            moment = now()
            if woken or (deadline is not None and deadline <= moment):
                return ()
            if moment < until:
                give_way()  # to the agent, if it shares this processor
                continue
            if not gave_way:  # the agent may be about to answer
                gave_way = True
                give_way()
                continue
            if not doze():
                continue
            if others := self._sleep(deadline):
                return others
            if not loop.running:
                return ()
            until, gave_way = now() + self.spin, False

    def _poll(self) -> Sequence[int]:
        """Take the pending completions before a program that polls runs again. If there was nothing, sleep until something
        comes or is due, so that the agent and others run. Raises NicGoneError."""
        self._polls += 1
        if not self._polls % _LOOK:
            self._look()
        taken = self._take_completions()
        ready = [descriptor for descriptor, _ in self._others.poll(0)]
        moment = time.monotonic_ns()
        if taken or ready or self.loop.woken:
            self._pause.found()
        elif (end := self._pause.until(moment)) is not None and self._nic.completions.doze():
            due = self.loop.next_time()
            ready = self._sleep(end if due is None else min(end, due))
            if self._take_completions() or ready:
                self._pause.found()
            self._pause.slept()
        return ready

    def _failed(self, error: Exception) -> FirmwareError:
        return failure(error, None, self._host, time.monotonic_ns())

    def _take_completions(self) -> bool:
        """Give the pending completions to the host library; return whether there were some."""
        shown = self._nic.completions.take(_POLLED)
        try:
            for index in shown:
                self._host.completed(index)
        except Exception as error:
            raise self._failed(error) from error
        return bool(shown)

    def _sleep(self, deadline: int | None) -> list[int]:
        """Sleep until we are woken, the deadline has come, or another descriptor is ready; return these."""
        nic = self._nic
        ready = [*self._waiter.wait(deadline)]
        nic.completions.rise()
        if nic.woken in ready:
            ready.remove(nic.woken)
            os.read(nic.woken, _DRAINED)
        if nic.fileno() in ready:
            ready.remove(nic.fileno())
            self._look()
        return ready

    def _look(self) -> None:
        """Check the agent. When it is gone, its pending completions still count, since the senders may have been notified.
        Raises NicGoneError, unless the program has waited only for those."""
        try:
            self._nic.check_agent()
        except NicGoneError:
            loop = self.loop
            while loop.running and (shown := self._nic.completions.take(_TAKEN)):
                for index in shown:
                    self._host.completed(index)
                while loop.woken and loop.running:
                    loop.run_woken()
            if loop.running:
                raise
