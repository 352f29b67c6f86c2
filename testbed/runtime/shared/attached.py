"""A host process's side of a shared NIC: it attaches, and drives the loop of its program.

While tasks wait, the completions' ring is looked at, and whom a completion wakes goes on at once, as beside an inline NIC
(`testbed.runtime.nodes.driver`). When there is nothing, it spins for its budget, says that it sleeps, and sleeps.
"""

from __future__ import annotations

import os
import select
import socket
import time
from collections.abc import Callable, Sequence
from typing import Any, Final

from protocols.core.apart import Apart, Place
from protocols.core.firmware import Adapter, Host
from testbed.engine.loop import Loop
from testbed.kernel.waiting import Waiter
from testbed.runtime.shared import introduction
from testbed.runtime.shared.heap import Heap
from testbed.runtime.shared.introduction import AttachError, NicGoneError
from testbed.runtime.shared.region import Layout, Region
from testbed.runtime.shared.rings import Reader, Writer

_TAKEN: Final = 64  # completions at a time
_LOOK: Final = 64  # completions, or empty looks, in a row after which other descriptors are looked at
_DRAINED: Final = 4096  # bytes
_ANSWER: Final = 10.0  # s for the agent to answer
_SOON: Final = 0.5  # s, where somebody waits for a sentence


class Attachment:
    """This process's function of a NIC. Is the host library's `Bell`. Ends with `close`, or with the process."""

    def __init__(self, device: str, ethertype: int, apart: Apart, function: int | None = None) -> None:
        """device: an interface of this process's network namespace. function: which one; None: any that is free. Raises
        AttachError."""
        self._asking = False
        self._connection = introduction.connected(device)
        try:
            asked = {"do": "attach", "version": introduction.VERSION, "ethertype": ethertype, "function": function}
            answer, handed = self._ask(asked)
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
        )
        self.function: Final[int] = answer["function"]
        self.heap: Final = Heap(region.heap)
        self.completions: Final = Reader(region.completions.words, region.completions.numbers)
        self._doorbells = Writer(region.doorbells.words, region.doorbells.numbers, self._wake)
        self.host: Final = apart.host(self.adapter, self, self.heap, region.descriptors, Place(*answer["place"]))

    def fileno(self) -> int:
        """Can be read when the agent is gone."""
        return self._connection.fileno()

    def close(self) -> None:
        """Whatever is under way is over; the peers are told."""
        self._connection.close()
        os.close(self._bell)
        os.close(self.woken)

    def doorbell(self, index: int, written: int, translated: int) -> None:  # noqa: ARG002  here they cost what they cost
        put = self._doorbells.put
        while not put(index):  # more than descriptors can be: the agent will take some
            self.look()
            os.sched_yield()

    def look(self) -> None:
        """Raises NicGoneError when the agent is gone."""
        try:
            if not self._connection.recv(1, socket.MSG_DONTWAIT | socket.MSG_PEEK):
                raise NicGoneError("the agent of the NIC has ended, or has refused this process")
        except BlockingIOError:
            pass
        except ConnectionError as error:
            raise NicGoneError(f"the agent of the NIC has ended: {error}") from error

    def report(self) -> dict[str, Any]:
        """What the NIC has done: see the agent. Raises NicGoneError."""
        return self._ask({"do": "report"})[0]

    def waiting(self) -> list[str]:
        """A sentence for everything that the NIC waits for; may be called within a signal. Raises NicGoneError."""
        if self._asking:
            return ["its agent is being asked something else"]
        return [str(sentence) for sentence in self._ask({"do": "waiting"}, _SOON)[0]["waiting"]]

    def _ask(self, question: dict[str, Any], patience: float = _ANSWER) -> tuple[dict[str, Any], list[int]]:
        self._asking = True
        try:
            introduction.tell(self._connection, question)
            waiting = select.poll()
            waiting.register(self._connection, select.POLLIN)
            if not waiting.poll(patience * 1000):
                raise NicGoneError(f"the agent of the NIC has not answered within {patience:g} s")
            answer, handed = introduction.hear(self._connection)
        except OSError as error:
            raise NicGoneError(f"the agent of the NIC has ended: {error}") from error
        finally:
            self._asking = False
        if answer is None:
            raise NicGoneError("the agent of the NIC has ended, or has refused this process")
        return answer, handed

    def _wake(self) -> None:
        os.eventfd_write(self._bell, 1)


class HostDriver:
    """Drives the loop of a host's program, on the machine's monotonic clock.

    spin: nanoseconds to look for a completion before sleeping, letting others run in between.
    """

    def __init__(self, nic: Attachment, host: Host, spin: int = 0) -> None:
        """host: the host library to which completions are told."""
        self.loop = Loop(self)
        self.spin = spin
        self._nic = nic
        self._completed: Callable[[int], None] = host.completed
        self._others = select.poll()
        self._waiter = Waiter(0)
        self._waiter.watch(nic.woken)
        self._waiter.watch(nic.fileno())

    def tell(self, host: Host) -> None:
        """Tell completions to another host library, before the first one."""
        self._completed = host.completed

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
        """Take completions, and let tasks that they wake go on, until a watched descriptor is ready or the deadline has
        come. Raises NicGoneError."""
        nic, loop, completed, now = self._nic, self.loop, self._completed, time.monotonic_ns
        take, doze, woken, heap = nic.completions.take, nic.completions.doze, loop.woken, loop.heap
        until, looks, give_way, gave_way = now() + self.spin, 0, os.sched_yield, False
        while True:
            shown = take(_TAKEN)
            looks += 1
            if shown:
                for index in shown:
                    completed(index)
                if woken:
                    loop.go_on()
                    if (
                        woken or heap or not loop.running
                    ):  # else nothing but a completion, or what is watched, can wake it
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
                give_way()  # to the agent, where it has this processor, too
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

    def _sleep(self, deadline: int | None) -> list[int]:
        """Until we are woken, or the deadline has come, or something else is ready, which is returned."""
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
        """When the agent is gone, what it has completed before still counts: its senders may have been told so. Raises
        NicGoneError, unless that is all that the program has waited for."""
        try:
            self._nic.look()
        except NicGoneError:
            loop = self.loop
            while loop.running and (shown := self._nic.completions.take(_TAKEN)):
                for index in shown:
                    self._completed(index)
                while loop.woken and loop.running:
                    loop.go_on()
            if loop.running:
                raise
