"""Blocking programs: a greenlet with the program's own stack, driven by a coroutine.

A blocking call switches to the coroutine and hands over the completion that it awaits; the coroutine yields the completion
to its event loop, of the simulation or of a node process. So one mechanism serves every mode, and a blocking program is a
task like any other, interrupted and reported where it waits. Two switches take less than a microsecond.

A program may make MPI calls only in its own greenlet. A call from another thread raises RuntimeError there, and so does the
program's next call, so that the run does not continue without that thread's work.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Generator
from functools import cached_property
from types import FrameType, ModuleType, coroutine
from typing import Any, Final, TypeVar

from greenlet import getcurrent, greenlet

from protocols.mpi import blocking_calls, comm
from protocols.mpi.send_buffer import SendBuffer
from testbed.engine.tracebacks import program_line, stack_frames
from testbed.engine.waitables import Awaited
from testbed.mpi.attached_world import AttachedRank, last_attached
from testbed.mpi.escape import never_free
from testbed.spec.placement import node_of

T = TypeVar("T")

_SINGLE_THREAD: Final = (
    "only the thread in which the program began may call it (MPI.Query_thread() is THREAD_SINGLE): let that one call "
    "Test or Iprobe between its computations"
)


class MisplacedCallError(RuntimeError):
    """A call from another thread than the program's, from the program of another rank, or after the program's end."""

    is_caller_error: Final = True


class Program(greenlet):
    """A rank's blocking program. world: its COMM_WORLD. now: returns the time of its clock in nanoseconds. name: the
    rank's name."""

    def __init__(
        self,
        work: Callable[[], object],
        world: comm.Comm,
        now: Callable[[], int],
        name: str,
        main: ModuleType | None = None,
        arguments: list[str] | None = None,
    ) -> None:
        """main, arguments: `__main__` module and `sys.argv` while the program runs; None: those of the process stay."""
        super().__init__(work)
        self._wait: Final = getcurrent().switch  # switches to the greenlet of the loop
        if world.send_buffer is None:
            world.send_buffer = SendBuffer()
        properties = blocking_calls.make_properties(world, node_of(name), "MPI_COMM_WORLD")
        self.world: Final = blocking_calls.Comm(world, self.wait_for, properties)
        self.now: Final = now
        self.name: Final = name
        self._main = main
        self._arguments = arguments or []
        self._thread = threading.get_ident()
        self._misuse = ""  # message on a call from another thread

    @coroutine
    def drive(self) -> Generator[Awaited, None, Any]:
        """Drive the program to its end; return its result."""
        resume, switch = self._resume, self.switch
        awaited = resume(switch)
        while not self.dead:
            try:
                yield awaited
            except GeneratorExit as error:  # the coroutine was closed
                resume(self.throw, error)
                never_free(self)  # it may have caught GeneratorExit
                raise
            except BaseException as error:  # noqa: BLE001  an interruption is raised where the program waits
                awaited = resume(self.throw, error)
            else:
                awaited = resume(switch)
        return awaited

    def wait_for(self, work: blocking_calls.CallCoroutine[T], /) -> T:
        """Run a coroutine for the program and return its result; see `blocking_calls.CoroutineRunner`. Raises
        MisplacedCallError to other callers."""
        if threading.get_ident() != self._thread:
            work.close()
            self._misuse = (
                f"thread {threading.current_thread().name!r} of the program on {self.name} called MPI: {_SINGLE_THREAD}"
            )
            raise MisplacedCallError(self._misuse)
        if self._misuse:
            work.close()
            raise MisplacedCallError(self._misuse)
        if self.dead:
            work.close()
            raise MisplacedCallError(f"the program on {self.name} has ended, and cannot call MPI any more")
        if getcurrent() is not self:
            work.close()
            raise MisplacedCallError(
                f"the call uses an object of the program on {self.name}, outside that program. In the simulation all ranks "
                "share the modules that they import: a communicator stored in one is that of the rank that ran first"
            )
        send, wait = work.send, self._wait
        try:
            awaited = send(None)
            while True:
                try:
                    wait(_Waiting(awaited, self))
                except BaseException as error:  # noqa: BLE001  raised where the coroutine waits
                    awaited = work.throw(error)
                else:
                    awaited = send(None)
        except StopIteration as stop:
            return stop.value  # type: ignore[no-any-return]  # the coroutine's result

    @cached_property
    def self_comm(self) -> blocking_calls.Comm:
        """COMM_SELF of this program."""
        self_comm = self.world.wrapped.make_self()
        return blocking_calls.Comm(
            self_comm, self.wait_for, blocking_calls.make_properties(self_comm, node_of(self.name), "MPI_COMM_SELF")
        )

    def finalize(self) -> None:
        """Raise MPIError if sends have failed and no call has reported it."""
        self.world.wrapped.lost_sends.finish()

    def _resume(self, switch: Callable[..., Any], *error: BaseException) -> Any:
        """Run the program to its next wait or its end; return the awaitable or the result."""
        if self._main is None:
            return switch(*error)
        saved = sys.modules["__main__"], sys.argv
        sys.modules["__main__"], sys.argv = self._main, self._arguments
        try:
            return switch(*error)
        finally:
            sys.modules["__main__"], sys.argv = saved


class _Waiting:
    """Awaitable of a blocked program."""

    __slots__ = ("_awaited", "_program")

    def __init__(self, awaited: Awaited, program: Program) -> None:
        self._awaited = awaited
        self._program = program

    @property
    def done(self) -> bool:
        return self._awaited.done

    def add_callback(self, callback: Callable[[object], object], /) -> None:
        self._awaited.add_callback(lambda _: callback(self))

    def frames(self) -> list[FrameType]:
        """The program's stack."""
        return stack_frames(self._program.gr_frame)

    def __repr__(self) -> str:
        return f"<{self}, at {program_line(self.frames())}>"

    def __str__(self) -> str:
        return str(self._awaited)


def current() -> Program | AttachedRank:
    """Return the calling program, else the process's attached rank. Raises RuntimeError if there is neither."""
    program = getcurrent()
    if isinstance(program, Program):
        return program
    attached = last_attached()
    if attached is None and threading.current_thread() is not threading.main_thread():
        raise RuntimeError(f"thread {threading.current_thread().name!r} called MPI: {_SINGLE_THREAD}")
    if attached is None:
        raise RuntimeError(
            "there is no rank here: 'testbed run CLUSTER SCRIPT' gives a script one on every node, and "
            "'with testbed.attach():' one to a process that was started in a node"
        )
    return attached
