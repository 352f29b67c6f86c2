"""mpi4py's interface without transfers: handles, attributes, error handlers, info, missing names."""

from __future__ import annotations

import array
import pickle
from typing import Any

import pytest

from testbed.mpi import MPI
from tests.unit.protocols.emp_ranks import Ranks
from tests.unit.protocols.test_mpi_blocking import run

NULLS: list[Any] = [
    MPI.COMM_NULL, MPI.REQUEST_NULL, MPI.MESSAGE_NULL, MPI.GROUP_NULL, MPI.INFO_NULL, MPI.ERRHANDLER_NULL, MPI.OP_NULL,
    MPI.DATATYPE_NULL,
]  # fmt: skip


@pytest.mark.parametrize("null", NULLS, ids=lambda null: type(null).__name__)
def test_a_null_handle_is_false_and_equals_only_null_handles_of_its_class(null: Any) -> None:
    kind = type(null)
    assert not null
    assert null == kind() == kind(null)
    assert [other for other in NULLS if other == null] == [null]
    assert null != None and null != 0  # noqa: E711, PT018  `==` of mpi4py's handles
    for other in (1, "abc", MPI.Status()):
        with pytest.raises(TypeError):
            kind(other) if kind is not MPI.Datatype or other != "abc" else kind(1)


def test_comm_null_rejects_every_call() -> None:
    for call in (
        MPI.COMM_NULL.Get_size,
        MPI.COMM_NULL.Barrier,
        MPI.COMM_NULL.Free,
        MPI.COMM_NULL.Get_name,
        MPI.COMM_NULL.Get_group,
        MPI.COMM_NULL.Dup,
        lambda: MPI.COMM_NULL.send(1, 0),
        lambda: MPI.COMM_NULL.Split(0),
        lambda: MPI.COMM_NULL.Create(MPI.GROUP_EMPTY),
        lambda: MPI.COMM_NULL.Create_group(MPI.GROUP_EMPTY),
        MPI.COMM_NULL.Is_inter,
    ):
        with pytest.raises(MPI.Exception, match="COMM_NULL") as raised:
            call()
        assert raised.value.Get_error_class() == MPI.ERR_COMM


def test_freed_and_completed_handles_become_null() -> None:
    def program() -> None:
        world = MPI.COMM_WORLD
        other = MPI.Comm(world)
        assert other == world
        assert other is not world
        copy = world.Dup()
        assert copy != world
        copy.Free()
        assert copy == MPI.COMM_NULL
        group = world.group
        group.Free()
        assert group == MPI.GROUP_NULL
        with pytest.raises(MPI.Exception, match="GROUP_NULL"):
            group.Get_size()
        request = world.isend(1, world.rank)
        message = world.mprobe(world.rank)
        assert message
        assert message.recv() == 1
        assert message == MPI.MESSAGE_NULL
        with pytest.raises(MPI.Exception, match="received before"):
            message.recv()
        assert request != MPI.REQUEST_NULL
        request.wait()
        assert request == MPI.REQUEST_NULL
        assert world.mprobe(MPI.PROC_NULL) == MPI.MESSAGE_NO_PROC
        for predefined in (MPI.COMM_WORLD, MPI.COMM_SELF):
            with pytest.raises(MPI.Exception, match="cannot be freed"):
                predefined.Free()

    run(Ranks(1), program)


def test_attributes_are_copied_and_deleted_by_the_functions_of_their_keys() -> None:
    def program() -> None:
        world, deleted = MPI.COMM_WORLD, []

        def double(comm: MPI.Comm, key: int, value: int) -> int:
            assert (comm, key) == (world, doubled)
            return 2 * value

        doubled = MPI.Comm.Create_keyval(double, lambda _comm, _key, value: deleted.append(value))
        kept, dropped = MPI.Comm.Create_keyval(True), MPI.Comm.Create_keyval()
        for key in (doubled, kept, dropped):
            assert world.Get_attr(key) is None
            world.Set_attr(key, 7)
        copy = world.Dup()
        assert [copy.Get_attr(key) for key in (doubled, kept, dropped)] == [14, 7, None]
        copy.Free()
        world.Set_attr(doubled, 8)
        world.Delete_attr(doubled)
        assert deleted == [14, 7, 8]
        assert MPI.Comm.Free_keyval(doubled) == MPI.KEYVAL_INVALID
        assert world.Get_attr(MPI.TAG_UB) == world.tag_ub
        assert world.Get_attr(MPI.UNIVERSE_SIZE) == 1
        assert world.Get_attr(MPI.WTIME_IS_GLOBAL) is False
        for call in (lambda: world.Set_attr(MPI.TAG_UB, 1), lambda: world.Get_attr(MPI.KEYVAL_INVALID)):
            with pytest.raises(MPI.Exception) as raised:
                call()
            assert raised.value.Get_error_class() == MPI.ERR_KEYVAL

    run(Ranks(1), program)


def test_the_error_handler_determines_whether_an_error_is_raised_or_ends_the_program() -> None:
    def program() -> None:
        world = MPI.COMM_WORLD
        assert world.Get_errhandler() == MPI.ERRORS_RETURN
        part = world.Dup()
        part.Set_errhandler(MPI.ERRORS_ARE_FATAL)
        assert part.Dup().Get_errhandler() == MPI.ERRORS_ARE_FATAL
        with pytest.raises(MPI.Exception):
            world.send(1, 7)
        for call in (lambda: part.send(1, 7), lambda: part.Isend(b"", 7), lambda: part.Bcast(bytearray(1), 7)):
            with pytest.raises(SystemExit, match="errors are fatal here"):
                call()

    run(Ranks(1), program)


def test_names_and_infos_of_communicators() -> None:
    def program() -> None:
        world = MPI.COMM_WORLD
        assert (world.name, MPI.COMM_SELF.Get_name()) == ("MPI_COMM_WORLD", "MPI_COMM_SELF")
        part = world.Dup(MPI.Info.Create({"hint": "x"}))
        part.name = "mine"
        assert part.Get_name() == "mine"
        assert part.info["hint"] == "x"
        assert part.topology == MPI.UNDEFINED
        grid = world.Create_cart([1])
        assert isinstance(grid, MPI.Cartcomm)
        assert grid.topology == MPI.CART

    run(Ranks(1), program)


def test_split_type_shared_gives_the_ranks_of_a_node() -> None:
    def program() -> tuple[int, bool]:
        world = MPI.COMM_WORLD
        none = world.Split_type(MPI.UNDEFINED)
        return world.Split_type(MPI.COMM_TYPE_SHARED).size, none == MPI.COMM_NULL

    assert run(Ranks(2), program, program) == [(1, True)] * 2


def test_isendrecv_returns_one_request() -> None:
    def program() -> bytes:
        world, status, got = MPI.COMM_WORLD, MPI.Status(), bytearray(3)
        other = 1 - world.rank
        world.Isendrecv(bytes([world.rank] * 3), other, 5, got, other, 5).Wait(status)
        assert (status.source, status.tag, status.count) == (other, 5, 3)
        world.Isendrecv_replace(got, other, 6, other, 6).Wait()
        world.Isendrecv(b"", MPI.PROC_NULL, 0, None, MPI.PROC_NULL, 0).Wait(status)  # done when it begins
        assert status.source == MPI.PROC_NULL
        return bytes(got)

    assert run(Ranks(2), program, program) == [bytes(3), bytes([1] * 3)]


def test_a_missing_name_raises_an_error_with_a_hint() -> None:
    with pytest.raises(AttributeError, match=r"MPI.Win is not in testbed's subset of mpi4py \(docs/protocols/mpi.md\)"):
        MPI.Win  # noqa: B018
    with pytest.raises(
        AttributeError, match=r"MPI.Comm.Spawn is not in testbed's subset of mpi4py \(docs/protocols/mpi.md\)"
    ):
        MPI.COMM_NULL.Spawn  # noqa: B018
    for name, look_up in {
        "Comm.Get_parent": lambda: MPI.Comm.Get_parent,
        "Datatype.Pack": lambda: MPI.INT.Pack,
        "Status.tomemory": lambda: MPI.Status().tomemory,
    }.items():
        with pytest.raises(AttributeError, match=f"^MPI.{name} is not in testbed's subset of mpi4py"):
            look_up()
    assert not hasattr(MPI.COMM_NULL, "__array_interface__")


def test_an_exception_equals_its_error_code() -> None:
    error = MPI.Exception(MPI.ERR_RANK)
    assert error == MPI.ERR_RANK == int(error)
    assert MPI.Exception(MPI.SUCCESS) < error < MPI.ERR_LASTCODE
    assert (str(error), repr(error)) == ("invalid rank", f"MPI.Exception({MPI.ERR_RANK})")
    assert str(pickle.loads(pickle.dumps(MPI.Exception(MPI.ERR_TAG, "a tag of -3")))) == "a tag of -3"
    own = MPI.Add_error_class()
    code = MPI.Add_error_code(own)
    MPI.Add_error_string(code, "mine")
    assert (MPI.Get_error_class(code), MPI.Get_error_string(code)) == (own, "mine")


def test_a_status_is_copied_and_pickled() -> None:
    status = MPI.Status()
    status.Set_source(3)
    status.Set_elements(MPI.INT, 2)
    assert status == MPI.Status(status) == pickle.loads(pickle.dumps(status))
    assert status != MPI.Status()
    with pytest.raises(MPI.Exception, match="DATATYPE_NULL"):
        status.Get_count(MPI.DATATYPE_NULL)


def test_addresses() -> None:
    numbers = array.array("i", range(4))
    assert MPI.Get_address(numbers) == numbers.buffer_info()[0]
    assert MPI.Aint_diff(MPI.Aint_add(40, 4), 40) == 4
    assert MPI.Get_address(MPI.BOTTOM) == 0


def test_subarrays_and_structures() -> None:
    part = MPI.INT.Create_subarray([3, 4], [2, 2], [1, 1]).Commit()
    assert part.spans == ((20, 8), (36, 8))
    assert (part.size, part.extent) == (16, 48)
    assert MPI.INT.Create_subarray([4, 3], [2, 2], [1, 1], MPI.ORDER_FORTRAN).spans == part.spans
    record = MPI.Datatype.Create_struct([1, 2], [0, 8], [MPI.INT, MPI.DOUBLE])
    assert (record.spans, record.size, record.extent) == (((0, 4), (8, 16)), 20, 24)
    assert MPI.INT.Create_hvector(2, 1, 12).spans == ((0, 4), (12, 4))
    assert MPI.INT.Create_hindexed_block(1, [8, 0]).spans == ((8, 4), (0, 4))
    assert (record.Get_true_extent(), MPI.INT.Create_hvector(2, 1, 12).extent) == ((0, 24), 16)
    with pytest.raises(MPI.Exception, match="of an array"):
        MPI.INT.Create_subarray([3], [2], [2])


def highest(left: int, right: int, _: object) -> int:
    return max(left, right)


def test_operations_can_be_pickled_and_communicators_cannot() -> None:
    for op in (MPI.SUM, MPI.MAXLOC, MPI.OP_NULL):
        assert pickle.loads(pickle.dumps(MPI.Op(op))) is op
    copy = pickle.loads(pickle.dumps(MPI.Op.Create(highest, commute=True)))
    assert copy(3, 5) == 5
    assert copy.Is_commutative()
    with pytest.raises(ValueError, match="a Comm cannot be pickled: it belongs to its rank"):
        pickle.dumps(MPI.COMM_NULL)


def test_datatypes_by_numpy_type_codes() -> None:
    assert MPI._typedict["d"] == MPI.Datatype.fromcode("f8") == MPI.DOUBLE
    with pytest.raises(ValueError, match="no basic datatype has the code 'f7'"):
        MPI.Datatype.fromcode("f7")


class Ring(MPI.Intracomm):
    """Subclasses of mpi4py's classes in programs have such a `__new__`."""

    def __new__(cls, comm: MPI.Comm | None = None) -> Ring:
        return super().__new__(cls, comm)

    @property
    def next(self) -> int:
        return (self.rank + 1) % self.size


def test_programs_may_subclass_communicators() -> None:
    def program() -> tuple[int, bool]:
        ring = Ring(MPI.COMM_WORLD)
        return ring.next, ring == MPI.COMM_WORLD

    assert run(Ranks(2), program, program) == [(1, True), (0, True)]
    assert not Ring()
