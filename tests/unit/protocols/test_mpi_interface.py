"""mpi4py's interface without transfers: handles, attributes, error handlers, info, missing names."""

from __future__ import annotations

import array
import ctypes
import pickle
import sys
from typing import Any

import pytest

from testbed.mpi import MPI
from tests.unit.protocols.emp_ranks import Ranks, run_blocking

OTHER_BYTE_ORDER = (
    (ctypes.c_double.__ctype_be__ if sys.byteorder == "little" else ctypes.c_double.__ctype_le__) * 1  # type: ignore[attr-defined]
)()
"""A buffer of one number that is not in the machine's byte order."""

NULLS: list[Any] = [
    MPI.COMM_NULL, MPI.REQUEST_NULL, MPI.MESSAGE_NULL, MPI.GROUP_NULL, MPI.INFO_NULL, MPI.ERRHANDLER_NULL, MPI.OP_NULL,
    MPI.DATATYPE_NULL,
]  # fmt: skip


@pytest.mark.parametrize("null", NULLS, ids=lambda null: type(null).__name__)
def test_a_null_handle_is_false_and_equals_only_null_handles_of_its_class(null: Any) -> None:
    kind = type(null)
    assert not null
    assert null == kind() == kind(null)
    assert [other_value for other_value in NULLS if other_value == null] == [null]
    assert null != None and null != 0  # noqa: E711, PT018  `==` of mpi4py's handles
    for other_value in (1, "abc", MPI.Status()):
        with pytest.raises(TypeError):
            kind(other_value) if kind is not MPI.Datatype or other_value != "abc" else kind(1)


@pytest.mark.parametrize(
    "handle", [MPI.REQUEST_NULL, MPI.MESSAGE_NULL, MPI.ERRHANDLER_NULL], ids=lambda null: type(null).__name__
)
def test_handles_whose_equality_changes_have_no_hash(handle: Any) -> None:
    with pytest.raises(TypeError, match="unhashable"):
        hash(handle)


def test_comm_null_rejects_every_call() -> None:
    for call in (
        MPI.COMM_NULL.Get_size,
        MPI.COMM_NULL.Barrier,
        MPI.COMM_NULL.Free,
        MPI.COMM_NULL.Get_group,
        MPI.COMM_NULL.Dup,
        lambda: MPI.COMM_NULL.send(1, 0),
        lambda: MPI.COMM_NULL.Split(0),
        lambda: MPI.COMM_NULL.Create(MPI.GROUP_EMPTY),
        lambda: MPI.COMM_NULL.Create_group(MPI.GROUP_EMPTY),
        MPI.COMM_NULL.Is_inter,
        MPI.COMM_NULL.Ibarrier,
        lambda: MPI.COMM_NULL.Ibcast(bytearray(1)),
        lambda: MPI.COMM_NULL.Iallreduce(bytearray(1), bytearray(1)),
        lambda: MPI.COMM_NULL.Reduce_scatter_block(bytearray(1), bytearray(1)),
        lambda: MPI.COMM_NULL.Alltoallv([bytearray(1), [1]], [bytearray(1), [1]]),
        lambda: MPI.COMM_NULL.Alltoallw([bytearray(1), [1], [0], [MPI.BYTE]], [bytearray(1), [1], [0], [MPI.BYTE]]),
        lambda: MPI.COMM_NULL.Attach_buffer(bytearray(100)),
        MPI.COMM_NULL.Detach_buffer,
        lambda: MPI.COMM_NULL.tag_ub,
        lambda: MPI.COMM_NULL.Create_cart([1]),
        lambda: MPI.COMM_NULL.Cart_map([1]),
        lambda: MPI.COMM_NULL.Create_graph([1], [0]),
        lambda: MPI.COMM_NULL.Graph_map([1], [0]),
        lambda: MPI.COMM_NULL.Create_dist_graph_adjacent([0], [0]),
        lambda: MPI.COMM_NULL.Create_dist_graph([0], [1], [0]),
        lambda: MPI.COMM_NULL.Compare(MPI.COMM_NULL),
        MPI.Cartcomm().Get_dim,
    ):
        with pytest.raises(MPI.Exception, match="COMM_NULL") as raised:
            call()
        assert raised.value.Get_error_class() == MPI.ERR_COMM
    assert MPI.COMM_NULL.Get_name() == "MPI_COMM_NULL"
    with pytest.raises(ValueError, match="OP_NULL"):
        MPI.OP_NULL(1, 2)


def test_an_argument_that_is_no_handle_of_its_class_is_named_in_a_type_error() -> None:
    def program() -> None:
        world: Any = MPI.COMM_WORLD
        group: Any = world.group
        request = world.isend(1, world.rank)
        numbers = array.array("i", [1])
        for call, sentence in (
            (lambda: world.Create([0]), "a Group is expected, not list"),
            (lambda: world.Create_group(world), "a Group is expected, not Comm"),
            (lambda: world.Compare(group), "a Comm is expected, not Group"),
            (lambda: group.Union([0], group), "a Group is expected, not list"),
            (lambda: group.Compare(None), "a Group is expected, not NoneType"),
            (lambda: MPI.Request.Waitall([request, 1]), "a Request is expected, not int"),
            (lambda: MPI.REQUEST_NULL.Test([MPI.Status()]), "a Status is expected, not list"),
            (lambda: MPI.Status().Get_count([1]), "a Datatype is expected, not list"),
            (lambda: world.Set_info({"hint": "x"}), "an Info is expected, not dict"),
            (lambda: world.Allreduce(numbers, numbers, max), "an Op is expected, not builtin_function_or_method"),
        ):
            with pytest.raises(TypeError, match=f"^{sentence}$"):
                call()
        assert world.recv() == 1

    run_blocking(Ranks(1), program)


def test_freed_and_completed_handles_become_null() -> None:
    def program() -> None:
        world = MPI.COMM_WORLD
        other_handle = MPI.Comm(world)
        assert other_handle == world
        assert other_handle is not world
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
        with pytest.raises(MPI.Exception, match="writable"):
            message.Recv(b"constant")
        assert message, "a call with an invalid buffer has not received the message"
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
        errhandler = world.Get_errhandler()
        errhandler.Free()
        assert errhandler == MPI.ERRHANDLER_NULL
        MPI.ERRORS_RETURN.Free()
        assert world.Get_errhandler() == MPI.ERRORS_RETURN != MPI.ERRHANDLER_NULL

    run_blocking(Ranks(1), program)


def test_attributes_are_copied_and_deleted_by_the_functions_of_their_keys() -> None:
    def program() -> None:
        world, deleted = MPI.COMM_WORLD, []

        def double(comm: MPI.Comm, key: int, value: int) -> int:
            assert (comm, key) == (world, doubled_key)
            return 2 * value

        doubled_key = MPI.Comm.Create_keyval(double, lambda _comm, _key, value: deleted.append(value))
        kept_key, dropped = MPI.Comm.Create_keyval(True), MPI.Comm.Create_keyval()
        for key in (doubled_key, kept_key, dropped):
            assert world.Get_attr(key) is None
            world.Set_attr(key, 7)
        copy = world.Dup()
        assert [copy.Get_attr(key) for key in (doubled_key, kept_key, dropped)] == [14, 7, None]
        copy.Free()
        world.Set_attr(doubled_key, 8)
        world.Delete_attr(doubled_key)
        assert deleted == [14, 7, 8]
        assert MPI.Comm.Free_keyval(doubled_key) == MPI.KEYVAL_INVALID
        assert world.Get_attr(MPI.TAG_UB) == world.tag_ub
        assert world.Get_attr(MPI.UNIVERSE_SIZE) == 1
        assert world.Get_attr(MPI.WTIME_IS_GLOBAL) is False
        for call in (
            lambda: world.Set_attr(MPI.TAG_UB, 1),
            lambda: world.Delete_attr(MPI.TAG_UB),
            lambda: world.Get_attr(MPI.KEYVAL_INVALID),
        ):
            with pytest.raises(MPI.Exception) as raised:
                call()
            assert raised.value.Get_error_class() == MPI.ERR_KEYVAL

    run_blocking(Ranks(1), program)


def test_a_freed_keyval_is_valid_only_for_attributes_that_have_it() -> None:
    def program() -> None:
        world, deleted = MPI.COMM_WORLD, []

        def delete(_comm: MPI.Comm, _keyval: int, value: int) -> None:
            deleted.append(value)

        keyval = MPI.Comm.Create_keyval(True, delete)
        world.Set_attr(keyval, 7)
        assert MPI.Comm.Free_keyval(keyval) == MPI.KEYVAL_INVALID
        assert world.Get_attr(keyval) == 7
        copy = world.Dup()
        assert copy.Get_attr(keyval) == 7
        copy.Free()
        world.Delete_attr(keyval)
        assert deleted == [7, 7]
        for call in (
            lambda: world.Set_attr(keyval, 1),
            lambda: world.Get_attr(keyval),
            lambda: world.Delete_attr(keyval),
            lambda: MPI.Comm.Free_keyval(keyval),
        ):
            with pytest.raises(MPI.Exception, match=f"invalid keyval {keyval}"):
                call()

    run_blocking(Ranks(1), program)


def test_an_attribute_with_a_freed_keyval_cannot_be_set_again() -> None:
    def program() -> None:
        keyval = MPI.Comm.Create_keyval()
        MPI.COMM_WORLD.Set_attr(keyval, 7)
        MPI.Comm.Free_keyval(keyval)
        with pytest.raises(MPI.Exception, match="invalid keyval") as raised:
            MPI.COMM_WORLD.Set_attr(keyval, 8)
        assert raised.value.Get_error_class() == MPI.ERR_KEYVAL
        assert MPI.COMM_WORLD.Get_attr(keyval) == 7

    run_blocking(Ranks(1), program)


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
            with pytest.raises(SystemExit, match="errors end the program"):
                call()

    run_blocking(Ranks(1), program)


def test_communicators_have_names_infos_and_topologies() -> None:
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

    run_blocking(Ranks(1), program)


def test_split_type_shared_returns_the_ranks_of_a_node() -> None:
    def program() -> tuple[int, bool]:
        world = MPI.COMM_WORLD
        none = world.Split_type(MPI.UNDEFINED)
        for split_type in (MPI.COMM_TYPE_HW_GUIDED, MPI.COMM_TYPE_HW_UNGUIDED, MPI.COMM_TYPE_RESOURCE_GUIDED):
            assert world.Split_type(split_type) == MPI.COMM_NULL
        shared = MPI.Info.Create({"mpi_hw_resource_type": "mpi_shared_memory"})
        assert world.Split_type(MPI.COMM_TYPE_HW_GUIDED, info=shared).size == 1
        return world.Split_type(MPI.COMM_TYPE_SHARED).size, none == MPI.COMM_NULL

    assert run_blocking(Ranks(2), program, program) == [(1, True)] * 2


def test_isendrecv_returns_one_request() -> None:
    def program() -> bytes:
        world, status, received = MPI.COMM_WORLD, MPI.Status(), bytearray(3)
        peer = 1 - world.rank
        world.Isendrecv(bytes([world.rank] * 3), peer, 5, received, peer, 5).Wait(status)
        assert (status.source, status.tag, status.count) == (peer, 5, 3)
        world.Isendrecv_replace(received, peer, 6, peer, 6).Wait()
        world.Isendrecv(b"", MPI.PROC_NULL, 0, None, MPI.PROC_NULL, 0).Wait(status)  # complete at once
        assert status.source == MPI.PROC_NULL
        return bytes(received)

    assert run_blocking(Ranks(2), program, program) == [bytes(3), bytes([1] * 3)]


def test_a_missing_name_raises_an_error_with_a_hint() -> None:
    hint = r" \(testbed implements a subset of mpi4py: docs/protocols/mpi.md\)$"
    with pytest.raises(AttributeError, match="^MPI has no attribute Win" + hint):
        MPI.Win  # noqa: B018
    with pytest.raises(AttributeError, match="^MPI has no attribute Comm.Spawn" + hint):
        MPI.COMM_NULL.Spawn  # noqa: B018
    for name, look_up in {
        "Comm.Get_parent": lambda: MPI.Comm.Get_parent,
        "Datatype.Create_darray": lambda: MPI.INT.Create_darray,
        "Status.tomemory": lambda: MPI.Status().tomemory,
    }.items():
        with pytest.raises(AttributeError, match=f"^MPI has no attribute {name}" + hint):
            look_up()
    assert not hasattr(MPI.COMM_NULL, "__array_interface__")


def test_an_exception_equals_its_error_code() -> None:
    error = MPI.Exception(MPI.ERR_RANK)
    assert error == MPI.ERR_RANK == int(error)
    assert MPI.Exception(MPI.SUCCESS) < error < MPI.ERR_LASTCODE
    assert (str(error), repr(error)) == ("invalid rank", f"MPI.Exception({MPI.ERR_RANK})")
    assert str(pickle.loads(pickle.dumps(MPI.Exception(MPI.ERR_TAG, "a tag of -3")))) == "a tag of -3"
    own_class = MPI.Add_error_class()
    code = MPI.Add_error_code(own_class)
    MPI.Add_error_string(code, "mine")
    assert (MPI.Get_error_class(code), MPI.Get_error_string(code)) == (own_class, "mine")
    in_use = r"not the program's own, or has a string( or codes)?$"
    for remove, number in (
        (MPI.Remove_error_class, own_class),
        (MPI.Remove_error_code, code),
        (MPI.Remove_error_code, own_class),
    ):
        with pytest.raises(MPI.Exception, match=in_use):
            remove(number)
    MPI.Remove_error_string(code)
    MPI.Remove_error_code(code)
    MPI.Remove_error_class(own_class)
    with pytest.raises(MPI.Exception, match="has no string"):
        MPI.Remove_error_string(code)
    assert MPI.Add_error_class() == own_class, "the class is free again"
    MPI.Remove_error_class(own_class)


def test_a_status_is_copied_and_pickled() -> None:
    status = MPI.Status()
    status.Set_source(3)
    status.Set_elements(MPI.INT, 2)
    assert status == MPI.Status(status) == pickle.loads(pickle.dumps(status))
    assert status != MPI.Status()
    with pytest.raises(MPI.Exception, match="DATATYPE_NULL"):
        status.Get_count(MPI.DATATYPE_NULL)


def test_addresses_are_those_of_buffers_and_can_be_added() -> None:
    numbers = array.array("i", range(4))
    assert MPI.Get_address(numbers) == numbers.buffer_info()[0]
    assert MPI.Aint_diff(MPI.Aint_add(40, 4), 40) == 4
    assert MPI.Get_address(MPI.BOTTOM) == 0


def test_subarrays_and_structures_have_the_standards_spans_and_extents() -> None:
    part = MPI.INT.Create_subarray([3, 4], [2, 2], [1, 1]).Commit()
    assert part.spans == ((20, 8), (36, 8))
    assert (part.size, part.extent) == (16, 48)
    assert MPI.INT.Create_subarray([4, 3], [2, 2], [1, 1], MPI.ORDER_FORTRAN).spans == part.spans
    record = MPI.Datatype.Create_struct([1, 2], [0, 8], [MPI.INT, MPI.DOUBLE])
    assert (record.spans, record.size, record.extent) == (((0, 4), (8, 16)), 20, 24)
    assert MPI.INT.Create_hvector(2, 1, 12).spans == ((0, 4), (12, 4))
    assert MPI.INT.Create_hindexed_block(1, [8, 0]).spans == ((8, 4), (0, 4))
    assert (record.Get_true_extent(), MPI.INT.Create_hvector(2, 1, 12).extent) == ((0, 24), 16)
    with pytest.raises(MPI.Exception, match="inside an array"):
        MPI.INT.Create_subarray([3], [2], [2])


@pytest.mark.parametrize(
    ("datatype", "envelope", "contents"),
    [
        (MPI.INT.Create_contiguous(3), (1, 0, MPI.COMBINER_CONTIGUOUS), ([3], [])),
        (MPI.INT.Create_vector(3, 2, 4), (3, 0, MPI.COMBINER_VECTOR), ([3, 2, 4], [])),
        (MPI.INT.Create_hvector(3, 2, 16), (2, 1, MPI.COMBINER_HVECTOR), ([3, 2], [16])),
        (MPI.INT.Create_indexed([1, 2], [3, 5]), (5, 0, MPI.COMBINER_INDEXED), ([2, 1, 2, 3, 5], [])),
        (MPI.INT.Create_hindexed([1, 2], [4, 8]), (3, 2, MPI.COMBINER_HINDEXED), ([2, 1, 2], [4, 8])),
        (MPI.INT.Create_indexed_block(2, [3, 5]), (4, 0, MPI.COMBINER_INDEXED_BLOCK), ([2, 2, 3, 5], [])),
        (MPI.INT.Create_hindexed_block(2, [8]), (2, 1, MPI.COMBINER_HINDEXED_BLOCK), ([1, 2], [8])),
        (
            MPI.INT.Create_subarray([4, 4], [2, 1], [1, 0]),
            (8, 0, MPI.COMBINER_SUBARRAY),
            ([2, 4, 4, 2, 1, 1, 0, MPI.ORDER_C], []),
        ),
        (MPI.INT.Create_resized(-4, 16), (0, 2, MPI.COMBINER_RESIZED), ([], [-4, 16])),
        (MPI.INT.Dup(), (0, 0, MPI.COMBINER_DUP), ([], [])),
    ],
    ids=lambda value: value.name if isinstance(value, MPI.Datatype) else "",
)
def test_a_datatype_returns_its_envelope_and_contents(
    datatype: MPI.Datatype, envelope: tuple[int, int, int], contents: tuple[list[int], list[int]]
) -> None:
    """MPI 4.1, section 5.1.13."""
    integers, addresses, combiner = envelope
    assert datatype.Get_envelope() == (integers, addresses, 0, 1, combiner)
    assert datatype.Get_contents() == (*contents, [], [MPI.INT])
    base, constructor, arguments = datatype.decode()
    assert getattr(base, f"Create_{constructor.lower()}")(**arguments) == datatype
    assert not datatype.is_named
    assert MPI.Datatype(datatype).combiner == combiner


def test_structures_and_predefined_datatypes_return_their_envelopes() -> None:
    record = MPI.Datatype.Create_struct([1, 2], [0, 8], [MPI.INT, MPI.DOUBLE])
    assert record.envelope == (3, 2, 0, 2, MPI.COMBINER_STRUCT)
    assert record.contents == ([2, 1, 2], [0, 8], [], [MPI.INT, MPI.DOUBLE])
    base, constructor, arguments = record.decode()
    assert (base, constructor) == (MPI.DATATYPE_NULL, "STRUCT")
    assert base.Create_struct(**arguments) == record
    arguments.pop("datatypes").clear()
    assert record.decode()[2]["datatypes"] == [MPI.INT, MPI.DOUBLE], "decode returns copies"
    assert (MPI.INT.is_predefined, MPI.INT.Dup().is_predefined, record.is_predefined) == (True, False, False)
    assert (MPI.INT.decode(), MPI.INT.envelope, MPI.INT.is_named) == (
        (MPI.INT, "NAMED", {}), (0, 0, 0, 0, MPI.COMBINER_NAMED), True,
    )  # fmt: skip
    for call in (MPI.INT.Get_contents, MPI.DATATYPE_NULL.Get_envelope, MPI.DATATYPE_NULL.decode):
        with pytest.raises(MPI.Exception) as raised:
            call()
        assert raised.value.Get_error_class() == MPI.ERR_TYPE


def test_packed_items_have_no_gaps_and_are_unpacked_to_their_places() -> None:
    column = MPI.INT.Create_vector(3, 1, 2).Create_resized(0, 24).Commit()
    matrix, packed, copy = array.array("i", range(12)), bytearray(30), array.array("i", [-1] * 12)
    position = column.Pack(matrix, packed, 2, MPI.COMM_NULL)
    assert position == 2 + column.Pack_size(2, MPI.COMM_NULL) == 26
    assert packed[2:26] == array.array("i", [0, 2, 4, 6, 8, 10]).tobytes()
    assert MPI.INT.Pack(array.array("i", [7]), packed, position, MPI.COMM_NULL) == 30
    assert column.Unpack(packed, 2, copy, MPI.COMM_NULL) == 26
    assert copy.tolist() == [0, -1, 2, -1, 4, -1, 6, -1, 8, -1, 10, -1]
    for error, call in {
        MPI.ERR_TRUNCATE: lambda: column.Pack(matrix, packed, 8, MPI.COMM_NULL),
        MPI.ERR_ARG: lambda: column.Unpack(packed, -1, copy, MPI.COMM_NULL),
        MPI.ERR_TYPE: lambda: MPI.INT.Create_contiguous(2).Pack(matrix, packed, 0, MPI.COMM_NULL),
        MPI.ERR_BUFFER: lambda: MPI.INT.Unpack(packed, 0, b"1234", MPI.COMM_NULL),
        MPI.ERR_COUNT: lambda: MPI.INT.Create_resized(0, 2).Commit().Pack(b"12", packed, 0, MPI.COMM_NULL),
    }.items():
        with pytest.raises(MPI.Exception) as raised:
            call()
        assert raised.value.Get_error_class() == error


def maximum(left: int, right: int, _: object) -> int:
    return max(left, right)


def test_operations_can_be_pickled_and_communicators_cannot() -> None:
    for op in (MPI.SUM, MPI.MAXLOC, MPI.OP_NULL):
        assert pickle.loads(pickle.dumps(MPI.Op(op))) is op
    copy = pickle.loads(pickle.dumps(MPI.Op.Create(maximum, commute=True)))
    assert copy(3, 5) == 5
    assert copy.Is_commutative()
    with pytest.raises(ValueError, match="a Comm cannot be pickled: it belongs to its rank"):
        pickle.dumps(MPI.COMM_NULL)


def test_datatypes_have_numpys_type_codes() -> None:
    assert (MPI.INT.tocode(), MPI.DOUBLE.typestr, MPI.C_BOOL.typestr, MPI.CHAR.typechar) == ("i", "f8", "b1", "c")
    vector = MPI.INT.Create_vector(2, 1, 2)
    assert (vector.typechar, vector.typestr, MPI.DATATYPE_NULL.typestr) == ("V", "V12", "")
    with pytest.raises(ValueError, match="has no typecode"):
        vector.tocode()
    assert MPI._typedict["d"] == MPI.Datatype.fromcode("f8") == MPI.DOUBLE
    with pytest.raises(ValueError, match="no basic datatype has the code 'f7'"):
        MPI.Datatype.fromcode("f7")


class Ring(MPI.Intracomm):
    """Subclass with a `__new__` as in programs for mpi4py."""

    def __new__(cls, comm: MPI.Comm | None = None) -> Ring:
        return super().__new__(cls, comm)

    @property
    def next(self) -> int:
        return (self.rank + 1) % self.size


class Copy(MPI.Intracomm):
    """Subclass each handle of which duplicates a communicator."""

    def __new__(cls, comm: MPI.Comm) -> Copy:
        return super().__new__(cls, comm.Dup())


def test_a_subclass_may_create_its_communicator_and_duplicates_keep_the_class() -> None:
    def program() -> bool:
        copy = Copy(MPI.COMM_WORLD)
        duplicate, request = copy.Idup_with_info(MPI.Info.Create({"hint": "x"}))
        request.Wait()
        assert duplicate.info["hint"] == "x"
        assert (bool(MPI.Info.Create_env()), len(MPI.Info.Create_env())) == (True, 0)
        assert [type(comm) for comm in (copy.Dup(), copy.Clone(), duplicate)] == [Copy] * 3
        assert type(copy.Split(0)) is MPI.Comm
        copy.Free()
        return bool(copy) or not MPI.COMM_WORLD

    assert run_blocking(Ranks(2), program, program) == [False, False]


def test_a_duplicate_has_the_info_of_its_call() -> None:
    def program() -> None:
        world = MPI.COMM_WORLD
        world.Set_info(MPI.Info.Create({"hint": "world"}))

        def hints(*info: MPI.Info) -> list[list[tuple[str, str]]]:
            duplicates = [world.Dup(*info)]
            for call in (world.Idup, world.Idup_with_info) if info else (world.Idup,):
                duplicate, request = call(*info)
                request.Wait()
                duplicates.append(duplicate)
            return [duplicate.Get_info().items() for duplicate in duplicates]

        assert hints() == [[("hint", "world")]] * 2
        assert hints(MPI.Info.Create({"hint": "x"})) == [[("hint", "x")]] * 3
        assert hints(MPI.INFO_NULL) == [[]] * 3

    run_blocking(Ranks(1), program)


def test_handles_of_a_topology_reject_communicators_without_it() -> None:
    def program() -> None:
        graph = MPI.COMM_WORLD.Create_graph([1], [0])
        for kind, comm in (
            (MPI.Cartcomm, graph),
            (MPI.Distgraphcomm, graph),
            (MPI.Graphcomm, MPI.COMM_WORLD),
            (MPI.Topocomm, MPI.COMM_WORLD),
        ):
            with pytest.raises(TypeError, match=f"a {kind.__name__} is expected, not "):
                kind(comm)
        assert MPI.Topocomm(graph).inoutedges == ([0], [0])
        assert MPI.Topocomm(graph).neighbor_allgather("block") == ["block"]
        grid = MPI.COMM_WORLD.Create_cart([1])
        grid.Free()
        with pytest.raises(MPI.Exception, match="COMM_NULL"):
            grid.Get_dim()

    run_blocking(Ranks(1), program)


@pytest.mark.parametrize("comm", [MPI.Topocomm(), MPI.Cartcomm(MPI.COMM_NULL), MPI.Graphcomm(), MPI.Distgraphcomm()])
def test_a_topology_of_comm_null_rejects_exchanges_with_neighbours(comm: MPI.Topocomm[Any]) -> None:
    assert comm == MPI.COMM_NULL
    for call in (
        lambda: comm.inedges,
        lambda: comm.neighbor_allgather(1),
        lambda: comm.Neighbor_allgather(bytearray(4), bytearray(4)),
        lambda: comm.Ineighbor_allgather(bytearray(4), bytearray(4)),
        lambda: comm.Neighbor_allgather_init(bytearray(4), bytearray(4)),
    ):
        with pytest.raises(MPI.Exception, match="COMM_NULL") as raised:
            call()
        assert raised.value.Get_error_class() == MPI.ERR_COMM


def test_an_abort_names_the_rank_in_comm_world() -> None:
    def program() -> str:
        reverse = MPI.COMM_WORLD.Split(0, -MPI.COMM_WORLD.rank)
        with pytest.raises(SystemExit) as raised:
            reverse.Abort(4)
        return str(raised.value)

    expected = [f"rank {rank} of COMM_WORLD has called Abort, with error code 4" for rank in range(2)]
    assert run_blocking(Ranks(2), program, program) == expected


def test_only_comm_world_has_a_universe_size() -> None:
    def program() -> list[object]:
        world = MPI.COMM_WORLD
        return [comm.Get_attr(MPI.UNIVERSE_SIZE) for comm in (world, world.Split(world.rank), world.Dup())]

    assert run_blocking(Ranks(2), program, program) == [[2, None, None]] * 2


def test_a_duplicate_of_a_basic_datatype_is_freed_and_the_basic_one_is_not() -> None:
    copy = MPI.INT.Dup()
    assert copy.tocode() == MPI.INT.tocode()
    copy.Free()
    with pytest.raises(MPI.Exception, match="not committed"):
        copy.Pack(bytes(4), bytearray(4), 0, MPI.COMM_NULL)
    with pytest.raises(MPI.Exception, match="predefined datatype MPI_INT cannot be freed"):
        MPI.INT.Free()


def test_programs_may_subclass_communicators() -> None:
    def program() -> tuple[int, bool]:
        ring = Ring(MPI.COMM_WORLD)
        return ring.next, ring == MPI.COMM_WORLD

    assert run_blocking(Ranks(2), program, program) == [(1, True), (0, True)]
    assert not Ring()


@pytest.mark.parametrize(
    ("error", "call"),
    [
        (TypeError, lambda comm: comm.Send("abc", 0)),
        (TypeError, lambda comm: comm.Send([1, 2, 3], 0)),
        (BufferError, lambda comm: comm.Recv(b"abc", 0)),
        (BufferError, lambda comm: comm.Send(OTHER_BYTE_ORDER, 0)),
        (BufferError, lambda comm: comm.Recv([OTHER_BYTE_ORDER, 1], 0)),
        (BufferError, lambda comm: comm.Send(memoryview(bytes(9))[::2], 0)),
        (KeyError, lambda comm: comm.Send([bytearray(8), "zz"], 0)),
        (ValueError, lambda comm: comm.scatter([1, 2, 3], root=0)),
        (ValueError, lambda comm: comm.alltoall([1, 2, 3])),
        (ValueError, lambda comm: comm.Allreduce(bytearray(2), bytearray(3))),
        (ValueError, lambda comm: comm.Allgather(bytearray(2), bytearray(3))),
        (ValueError, lambda comm: comm.Create_cart([1]).Get_cart_rank([0, 0])),
    ],
)
def test_invalid_arguments_raise_mpi4pys_error_which_is_also_an_mpi_exception(
    error: type[Exception], call: Any
) -> None:
    def program() -> None:
        with pytest.raises(error) as raised:
            call(MPI.COMM_WORLD)
        assert isinstance(raised.value, MPI.Exception)
        assert raised.value.Get_error_class() != MPI.SUCCESS
        copy = pickle.loads(pickle.dumps(raised.value))
        assert (type(copy), str(copy), copy.Get_error_class()) == (
            type(raised.value), str(raised.value), raised.value.Get_error_class(),
        )  # fmt: skip
        assert not str(raised.value).startswith("'")

    run_blocking(Ranks(1), program)
