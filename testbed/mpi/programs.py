"""Programs that block: a greenlet on which the program has its own stack, below a coroutine for whoever runs coroutines.

A call that must wait switches to the coroutine with what it waits for, and the coroutine yields that to its loop, which is
the simulation's or a node process's. So one way of blocking serves every mode, a program that blocks is a task as any
other, interrupted and named where it waits, and a node process's call runs its driver until the completion is done. Two
switches take less than a microsecond.

A program calls from its own greenlet only. Threads of its own are not promised anything.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator
from functools import cached_property
from pathlib import Path
from types import ModuleType, coroutine
from typing import Any, Final, TypeVar

from greenlet import getcurrent, greenlet

from protocols.mpi import blocking, comm
from protocols.mpi.buffering import SendBuffer
from testbed.engine.awaiting import Awaited
from testbed.mpi.attached import Attached, last

T = TypeVar("T")


class Program(greenlet):
    """One rank's. world: its COMM_WORLD. now: its clock, nanoseconds. name: its node's."""

    def __init__(
        self,
        work: Callable[[], object],
        world: comm.Comm,
        now: Callable[[], int],
        name: str,
        main: ModuleType | None = None,
        arguments: list[str] | None = None,
    ) -> None:
        """main: the module that is `__main__` to it, and arguments what is `sys.argv`, while it runs."""
        super().__init__(work)
        self._wait: Final = getcurrent().switch  # to the greenlet on which the loop runs
        if world.send_buffer is None:
            world.send_buffer = SendBuffer()
        self.world: Final = blocking.Comm(world, self.wait_for)
        self.now: Final = now
        self.name: Final = name
        self._main = main
        self._arguments = arguments or []

    @coroutine
    def carry(self) -> Generator[Awaited, None, Any]:
        """Carry it on until it has ended; what it returns."""
        go_on, switch = self._go_on, self.switch
        awaited = go_on(switch)
        while not self.dead:
            try:
                yield awaited
            except BaseException as error:  # noqa: BLE001  it was interrupted: the program's affair, where it waits
                awaited = go_on(self.throw, error)
            else:
                awaited = go_on(switch)
        return awaited

    def wait_for(self, work: blocking.Work[T], /) -> T:
        """What a coroutine returns, for the program; see `blocking.Run`. RuntimeError to anybody else."""
        if getcurrent() is not self:
            work.close()
            raise RuntimeError(
                f"this belongs to the program on {self.name}, and to its own thread. In the simulation all ranks share the "
                "modules that they import: a communicator kept in one of these is that of the rank that came first"
            )
        send, wait = work.send, self._wait
        try:
            awaited = send(None)
            while True:
                try:
                    wait(_Waiting(awaited, self))
                except BaseException as error:  # noqa: BLE001  raised where the coroutine waits, and on from there
                    awaited = work.throw(error)
                else:
                    awaited = send(None)
        except StopIteration as stop:
            return stop.value  # type: ignore[no-any-return]  # what the coroutine has returned

    @cached_property
    def alone(self) -> blocking.Comm:
        """Its COMM_SELF."""
        return blocking.Comm(self.world.awaited.alone(), self.wait_for)

    def where(self) -> str:
        """The line of its `main`, or the innermost one of its own, at which it waits."""
        frame = self.gr_frame
        file = getattr(self._main, "__file__", None)
        while frame is not None and frame.f_code.co_filename != file:
            frame = frame.f_back
        return f", at {Path(frame.f_code.co_filename).name}:{frame.f_lineno}" if frame is not None else ""

    def _go_on(self, switch: Callable[..., Any], *error: BaseException) -> Any:
        """What it waits for next, or has returned."""
        if self._main is None:
            return switch(*error)
        usual = sys.modules["__main__"], sys.argv
        sys.modules["__main__"], sys.argv = self._main, self._arguments
        try:
            return switch(*error)
        finally:
            sys.modules["__main__"], sys.argv = usual


class _Waiting:
    """What a program waits for, and where."""

    __slots__ = ("_awaited", "_program")

    def __init__(self, awaited: Awaited, program: Program) -> None:
        self._awaited = awaited
        self._program = program

    @property
    def done(self) -> bool:
        return self._awaited.done

    def add_callback(self, callback: Callable[[object], object], /) -> None:
        self._awaited.add_callback(lambda _: callback(self))

    def __repr__(self) -> str:
        return f"<{self}>"

    def __str__(self) -> str:
        return f"{self._awaited}{self._program.where()}"


def current() -> Program | Attached:
    """The program that calls, or the process that has attached to a NIC. Raises RuntimeError where there is neither."""
    program = getcurrent()
    if isinstance(program, Program):
        return program
    attached = last()
    if attached is None:
        raise RuntimeError(
            "there is no rank here: 'testbed run CLUSTER SCRIPT' gives a script one on every node, and "
            "'with testbed.attach():' one to a process that was started in a node"
        )
    return attached
