"""mpi4py's blocking calls, without await, in programs with their own stacks."""

from __future__ import annotations

import inspect
import sys
from types import ModuleType

import pytest

from protocols.emp.settings import Settings
from protocols.mpi import blocking_calls, comm, mpi_messages, requests
from protocols.mpi.mpi_errors import MPIError
from protocols.mpi.send_buffer import SendBuffer
from testbed.engine.loop import Loop, VirtualClock
from testbed.engine.tracebacks import program_traceback
from testbed.mpi import MPI
from testbed.mpi.mpi_programs import Program
from tests.unit.protocols.emp_ranks import Ranks, run_blocking
from tests.unit.protocols.host_programs import StuckError


@pytest.mark.parametrize(
    ("coroutine_class", "blocking_class"),
    [
        (comm.Comm, blocking_calls.Comm),
        (comm.Cartcomm, blocking_calls.Cartcomm),
        (comm.Graphcomm, blocking_calls.Graphcomm),
        (comm.Distgraphcomm, blocking_calls.Distgraphcomm),
        (requests.Request, blocking_calls.Request),
        (requests.Prequest, blocking_calls.Prequest),
        (mpi_messages.Message, blocking_calls.Message),
    ],
)
def test_every_call_has_a_coroutine_and_a_blocking_version(coroutine_class: type, blocking_class: type) -> None:
    def calls(form: type) -> set[str]:
        return {name for name, value in inspect.getmembers(form) if not name.startswith("_") and callable(value)}

    properties = {
        "Abort", "Call_errhandler", "Create_keyval", "Delete_attr", "Disconnect", "Dup_with_info", "Free_keyval", "Get_attr",
        "Get_errhandler", "Get_info", "Get_name", "Get_topology", "Idup_with_info", "Set_attr", "Set_errhandler", "Set_info",
        "Set_name",
        "Split_type",
    }  # fmt: skip
    handle_calls = {"handle_error", "Free", "Probe", "Iprobe", "probe", "iprobe"}
    assert (
        calls(coroutine_class) - {"make_self", "null"} - handle_calls
        == calls(blocking_class) - properties - handle_calls
    )


def test_buffers_are_sent_there_and_back() -> None:
    def ping() -> bytearray:
        world = MPI.COMM_WORLD
        assert (world.Get_rank(), world.Get_size(), MPI.Get_processor_name()) == (0, 2, "n1")
        buffer = bytearray(20_000)
        world.Send(b"x" * 20_000, dest=1, tag=7)
        world.Recv([buffer, MPI.BYTE], source=1, tag=8)
        return buffer

    def pong() -> int:
        world, status, buffer = MPI.COMM_WORLD, MPI.Status(), bytearray(20_000)
        world.Recv(buffer, MPI.ANY_SOURCE, MPI.ANY_TAG, status)
        world.Ssend(buffer, status.Get_source(), 8)
        return status.Get_count()

    ranks = Ranks()
    assert run_blocking(ranks, ping, pong) == [b"x" * 20_000, 20_000]
    assert ranks.is_idle()


def test_waits_for_several_requests_return_objects() -> None:
    def program() -> object:
        world = MPI.COMM_WORLD
        peer = 1 - world.rank
        receives = [world.irecv(source=peer, tag=tag) for tag in range(3)]
        sends = [world.isend({"tag": tag}, peer, tag) for tag in range(3)]
        assert all(receives)
        first = MPI.Request.Waitany([MPI.REQUEST_NULL, *receives]) - 1
        objects = MPI.Request.waitall(receives)
        assert MPI.Request.Testall(sends) in (True, False)
        assert MPI.Request.Waitall(sends)
        assert not any([*receives, MPI.REQUEST_NULL])
        assert MPI.Request.Waitany([]) == MPI.UNDEFINED
        assert MPI.Request.Testany([MPI.REQUEST_NULL]) == (MPI.UNDEFINED, True)
        return {first, *(value["tag"] for value in objects if isinstance(value, dict))}

    assert run_blocking(Ranks(), program, program) == [{0, 1, 2}] * 2


def test_probes_persistent_requests_and_cancel_also_block() -> None:
    def sender() -> None:
        world, data = MPI.COMM_WORLD, bytearray(b"a")
        request = world.Send_init(data, 1, 4)
        for byte in b"ab":
            data[0] = byte
            request.Start()
            request.Wait()
        request.Free()
        world.sendrecv("completion", 1, source=1)

    def receiver() -> bytes:
        world, status = MPI.COMM_WORLD, MPI.Status()
        world.Probe(status=status)
        buffer = bytearray(status.count)
        message = world.Mprobe(0, 4)
        message.Recv(buffer)
        receive = world.Recv_init(second := bytearray(1), 0, 4)
        MPI.Prequest.Startall([receive])
        while not receive.Test():
            assert receive.active
        unmatched = world.Irecv(bytearray(1), 0, 5)
        unmatched.Cancel()
        unmatched.Wait(status)
        assert status.Is_cancelled()
        while not world.iprobe(0):
            assert world.Improbe(0, 9) is None
        assert world.recv(source=0) == "completion"
        world.send(None, 0)
        return bytes(buffer + second)

    ranks = Ranks()
    assert run_blocking(ranks, sender, receiver)[1] == b"ab"
    assert ranks.is_idle()


def test_constructors_of_communicators_are_collective() -> None:
    def program() -> tuple[int, int, int]:
        world = MPI.COMM_WORLD
        half_world = world.Split(world.rank % 2, -world.rank)
        assert half_world is not None
        received = bytearray(1)
        half_world.Sendrecv(bytes([world.rank]), 1 - half_world.rank, 0, received, 1 - half_world.rank)
        copy = half_world.Dup()
        copy.Barrier()
        copy.Free()
        MPI.COMM_SELF.send("to myself", 0)
        assert MPI.COMM_SELF.recv() == "to myself"
        assert world.Split(MPI.UNDEFINED) == MPI.COMM_NULL
        return half_world.rank, half_world.size, received[0]

    assert run_blocking(Ranks(4), program, program, program, program) == [(1, 2, 2), (1, 2, 3), (0, 2, 0), (0, 2, 1)]


def test_an_error_is_raised_at_the_call_and_ends_the_run_if_not_caught() -> None:
    def sender() -> None:
        MPI.COMM_WORLD.Send(b"too long", 1)

    def receiver() -> None:
        with pytest.raises(MPI.Exception) as raised:
            MPI.COMM_WORLD.Recv(bytearray(1))
        assert raised.value.Get_error_class() == MPI.ERR_TRUNCATE
        raise ValueError("enough")

    with pytest.raises(ValueError, match="enough") as raised:
        run_blocking(Ranks(), sender, receiver)
    assert raised.traceback[-1].name == "receiver"


def test_a_deadlock_is_reported_with_the_lines_of_the_waiting_calls() -> None:
    script = "from testbed.mpi import MPI\n\n\ndef wait():\n    MPI.COMM_WORLD.Recv(bytearray(4), tag=3)\n\n\nwait()\n"
    main = ModuleType("__main__")
    main.__file__ = "/somewhere/deadlock.py"

    def program(world: comm.Comm) -> object:
        code = compile(script, "/somewhere/deadlock.py", "exec")
        return Program(lambda: exec(code, main.__dict__), world, lambda: 0, "n1", main).drive()

    with pytest.raises(
        StuckError, match=r"program 1: <a receive .*, tag 3, 4 bytes, at /somewhere/deadlock.py:5 in wait>"
    ):
        Ranks().run(program, program)  # type: ignore[arg-type]


def test_a_program_is_the_main_module_while_it_runs_and_has_its_own_arguments() -> None:
    main_before = sys.modules["__main__"], sys.argv
    mains = [ModuleType("__main__"), ModuleType("__main__")]
    for main in mains:
        exec("class Point:\n    def __init__(self, x):\n        self.x = x\n", main.__dict__)

    def work() -> int:
        world = MPI.COMM_WORLD
        own_main = mains[world.rank]
        assert sys.argv == [str(world.rank)]
        point = world.sendrecv(own_main.Point(world.rank), 1 - world.rank, source=1 - world.rank)
        assert isinstance(point, own_main.Point), "each rank pickles and unpickles its own"
        return int(point.x)

    def program(world: comm.Comm) -> object:
        return Program(work, world, lambda: 0, "", mains[world.rank], [str(world.rank)]).drive()

    assert Ranks().run(program, program) == [1, 0]  # type: ignore[arg-type]
    assert (sys.modules["__main__"], sys.argv) == main_before


def test_a_communicator_of_another_rank_is_rejected() -> None:
    communicators: list[blocking_calls.Comm] = []

    def first() -> None:
        communicators.append(MPI.COMM_WORLD)
        MPI.COMM_WORLD.Barrier()

    def second() -> None:
        MPI.COMM_WORLD.Barrier()
        with pytest.raises(RuntimeError, match="an object of the program on n1") as raised:
            communicators[0].Barrier()
        lines = program_traceback(raised.value).splitlines()
        assert [line.split(", ")[0] for line in lines if "File" in line] == [f'  File "{__file__}"'], (
            "no frame of the testbed is shown"
        )

    run_blocking(Ranks(), first, second)


def test_comm_world_does_not_exist_outside_of_a_rank() -> None:
    with pytest.raises(RuntimeError, match="there is no rank here"):
        MPI.COMM_WORLD  # noqa: B018
    with pytest.raises(AttributeError, match="MPI has no attribute COMM_WORD"):
        MPI.COMM_WORD  # noqa: B018


def test_an_interrupted_program_runs_its_cleanup_at_the_waiting_call() -> None:
    log: list[str] = []

    def program() -> None:
        try:
            MPI.COMM_WORLD.Recv(None)
        finally:
            log.append("cleaned up")

    loop = Loop(VirtualClock())
    work = Program(program, Ranks(1).world[0], loop.now, "n1")
    task = loop.spawn(work.drive(), "program")

    async def other_program() -> None:
        await loop.sleep(5)
        assert task.waits_for == "a receive from any rank, any tag, 0 bytes"
        task.cancel()
        await loop.sleep(5)

    loop.complete(other_program())
    assert task.cancelled
    assert log == ["cleaned up"]
    work = Program(program, Ranks(1).world[0], loop.now, "n1")
    loop.spawn(work.drive(), "program")
    loop.complete(loop.timeout(5, loop.sleep(1)))
    loop.close()
    assert log == ["cleaned up"] * 2


def test_the_processor_name_is_that_of_the_node_for_each_of_its_ranks() -> None:
    loop = Loop(VirtualClock())
    program = Program(MPI.Get_processor_name, Ranks(1).world[0], loop.now, "n1.1")
    assert loop.complete(program.drive()) == "n1"


def test_a_send_is_buffered_if_the_buffer_has_room_and_waits_otherwise() -> None:
    def sender() -> list[int]:
        world, data, waits_left = MPI.COMM_WORLD, bytearray(b"0"), []
        world.wrapped.send_buffer = SendBuffer(3 * 1024)
        for number in range(3):
            data[0] = number
            world.Send(data, 1, number)
            waits_left.append(number)
        world.send("room is left again", 1, 9)
        return waits_left

    def receiver() -> list[int]:
        world, received = MPI.COMM_WORLD, []
        for tag in (2, 1, 0):  # in reverse order
            world.Recv(buffer := bytearray(1), 0, tag)
            received.append(buffer[0])
        assert world.recv() == "room is left again"
        return received

    ranks = Ranks()
    assert run_blocking(ranks, sender, receiver) == [[0, 1, 2], [2, 1, 0]]
    assert ranks.is_idle()

    def exceed_the_buffer() -> None:
        MPI.COMM_WORLD.wrapped.send_buffer = SendBuffer(2 * 1024)
        for tag in range(3):
            MPI.COMM_WORLD.Send(b"x", 1, tag)

    with pytest.raises(StuckError, match="program 0: <a send to rank 1, tag 2"):
        run_blocking(Ranks(), exceed_the_buffer, lambda: MPI.COMM_WORLD.Recv(bytearray(1), 0, 9))


def test_the_next_call_reports_a_failed_buffered_send() -> None:
    def send_to_silent_rank() -> None:
        world = MPI.COMM_WORLD
        world.Send(b"lost", 1)
        request = world.Isend(b"lost, too", 1)
        with pytest.raises(MPIError, match="acknowledged nothing"):
            request.Wait()
        with pytest.raises(MPIError, match="acknowledged nothing"):
            world.Send(b"nothing is sent", 1)

    run_blocking(Ranks(settings=Settings(give_up=1_000_000_000)), send_to_silent_rank, lambda: None)


def test_persistent_collective_calls_block_and_are_null_once_freed() -> None:
    def program() -> bool:
        word = bytearray(2)
        request = MPI.COMM_WORLD.Bcast_init(word, root=1)
        for iteration in range(3):
            word[:] = bytes([iteration, MPI.COMM_WORLD.rank])
            request.Start()
            MPI.Prequest.Waitall([request])
            assert word == bytes([iteration, 1])
        request.Free()
        with pytest.raises(MPIError, match="was freed"):
            request.Start()
        return bool(request)

    assert run_blocking(Ranks(2), program, program) == [False, False]


def test_a_freed_persistent_request_is_null_through_every_handle() -> None:
    def program() -> None:
        data = bytearray(1)
        request = MPI.COMM_WORLD.Send_init(data, MPI.PROC_NULL)
        earlier = MPI.Prequest(request)
        request.Free()
        for handle in (request, earlier, MPI.Prequest(request)):
            assert not handle
            assert handle == MPI.REQUEST_NULL
            for call in (handle.Start, handle.Free):
                with pytest.raises(MPIError, match="was freed") as raised:
                    call()
                assert raised.value.Get_error_class() == MPI.ERR_REQUEST
        with pytest.raises(MPIError, match="is REQUEST_NULL"):
            MPI.Prequest().Start()

    run_blocking(Ranks(1), program)
