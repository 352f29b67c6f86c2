"""Derived datatypes: sizes and extents as MPI defines them, and messages that are not contiguous, moved by the NIC or
copied."""

from __future__ import annotations

from array import array

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocols.emp.host import Endpoint
from protocols.emp.settings import Settings
from protocols.mpi import (
    BYTE,
    DATATYPE_NULL,
    DOUBLE,
    ERR_ARG,
    ERR_COUNT,
    ERR_TRUNCATE,
    ERR_TYPE,
    INT,
    UNDEFINED,
    Comm,
    Datatype,
    Status,
)
from protocols.mpi.buffers import as_send_data
from protocols.mpi.iovec import to_contiguous
from protocols.mpi.mpi_errors import MPIError
from tests.unit.protocols.emp_ranks import Ranks
from tests.unit.protocols.mpi_devices import on_every_device


@pytest.mark.parametrize(
    ("datatype", "size", "lb", "extent"),
    [
        (DOUBLE.Create_contiguous(5), 40, 0, 40),
        (DOUBLE.Create_contiguous(0), 0, 0, 0),
        (DOUBLE.Create_vector(3, 2, 4), 48, 0, 80),  # two strides of 4, and the last block's 2
        (DOUBLE.Create_vector(1, 2, 4), 16, 0, 16),
        (DOUBLE.Create_vector(3, 1, -2), 24, -32, 40),
        (INT.Create_indexed([2, 0, 1], [5, 99, 1]), 12, 4, 24),  # empty blocks have no bounds
        (INT.Create_indexed_block(2, [0, 4]), 16, 0, 24),
        (INT.Create_vector(2, 1, 3).Create_contiguous(2), 16, 0, 32),
        (INT.Create_vector(2, 1, 3).Create_resized(0, 4), 8, 0, 4),
        (INT.Create_vector(2, 1, 3).Create_resized(0, 4).Create_vector(2, 1, 5), 16, 0, 24),
        (INT.Create_resized(-4, 12).Create_contiguous(3), 12, -4, 36),
    ],
)
def test_sizes_and_extents_follow_the_standard(datatype: Datatype, size: int, lb: int, extent: int) -> None:
    """MPI 4.1, section 5.1.2 ff."""
    assert datatype.Get_size() == datatype.size == size
    assert datatype.Get_extent() == (lb, extent)
    assert datatype.ub == lb + extent
    assert not datatype.is_predefined


def test_a_datatype_is_usable_between_commit_and_free() -> None:
    vector = INT.Create_vector(2, 1, 2)
    for usable in (False, True, False):
        if usable:
            assert len(as_send_data([bytearray(12), 1, vector.Commit()])) == 8
            assert len(as_send_data([bytearray(12), 1, vector.Dup()])) == 8
            vector.Free()
        else:
            with pytest.raises(MPIError, match="not committed") as raised:
                as_send_data([bytearray(12), 1, vector])
            assert raised.value.Get_error_class() == ERR_TYPE
    with pytest.raises(MPIError) as raised:
        INT.Free()
    assert raised.value.Get_error_class() == ERR_TYPE
    assert len(as_send_data([bytearray(8), 2, INT])) == 8


def test_a_freed_datatype_equals_the_null_handle_and_types_made_from_it_remain() -> None:
    vector = INT.Create_vector(2, 1, 2).Commit()
    copy, pairs = vector.Dup(), vector.Create_contiguous(3)
    structure = Datatype.Create_struct([1], [0], [vector])
    vector.Free()
    assert not vector
    assert vector == DATATYPE_NULL != copy
    assert hash(vector) == hash(DATATYPE_NULL)
    assert len(as_send_data([bytearray(12), 1, copy])) == 8
    with pytest.raises(MPIError) as raised:
        vector.Free()
    assert raised.value.Get_error_class() == ERR_TYPE
    for _ in range(2):  # each call returns new handles
        base, *_ = pairs.decode()
        assert base == copy
        base.Free()
        (part,) = structure.Get_contents()[3]
        assert part == copy
        part.Free()


def test_invalid_datatypes_are_rejected() -> None:
    for make in (
        lambda: INT.Create_contiguous(-1),
        lambda: INT.Create_vector(-1, 1, 1),
        lambda: INT.Create_vector(2, -1, 1),
        lambda: INT.Create_indexed([-1], [0]),
    ):
        with pytest.raises(MPIError) as raised:
            make()
        assert raised.value.Get_error_class() == ERR_COUNT
    for make in (
        lambda: INT.Create_indexed([1, 2], [0]),
        lambda: INT.Create_subarray([4, 4], [2], [0, 0]),
    ):
        with pytest.raises(MPIError) as raised:
            make()
        assert raised.value.Get_error_class() == ERR_ARG
    freed = INT.Create_contiguous(2)
    freed.Free()
    for make in (
        lambda: freed.Create_contiguous(1),
        lambda: freed.Create_resized(0, 4),
        lambda: freed.Create_subarray([4], [2], [0]),
        lambda: Datatype.Create_struct([1], [0], [freed]),
        freed.Dup,
    ):
        with pytest.raises(MPIError, match="DATATYPE_NULL, or was freed") as raised:
            make()
        assert raised.value.Get_error_class() == ERR_TYPE


def test_a_buffer_must_hold_every_segment() -> None:
    vector = INT.Create_vector(2, 1, 3).Commit()
    backwards = INT.Create_vector(2, 1, -3).Commit()
    assert len(as_send_data([bytearray(16), 1, vector])) == 8
    assert len(as_send_data([bytearray(16), (1, 0), vector])) == 8
    assert len(as_send_data([bytearray(32), vector])) == 16, "as many items as the buffer holds"
    assert len(as_send_data([bytearray(5), 0, vector])) == 0
    for arguments in (
        [bytearray(15), 1, vector], [bytearray(16), 2, vector], [bytearray(16), (1, 1), vector],
        [bytearray(15), vector], [bytearray(64), 1, backwards], [bytearray(64), -1, vector],
        [bytearray(8), INT.Create_contiguous(0).Commit()],
    ):  # fmt: skip
        with pytest.raises(MPIError) as raised:
            as_send_data(arguments)  # type: ignore[arg-type]
        assert raised.value.Get_error_class() == ERR_COUNT


@st.composite
def derived_datatypes(draw: st.DrawFn) -> tuple[Datatype, list[int]]:
    """Draw a datatype of bytes, and its type map: the displacements of an item's bytes, by the standard's definitions."""
    datatype, displacements, extent = BYTE, [0], 1
    for _ in range(draw(st.integers(1, 3))):
        if draw(st.booleans()):
            count, length = draw(st.integers(0, 3)), draw(st.integers(0, 3))
            stride = draw(st.integers(0, 5))
            blocks = [(number * stride, length) for number in range(count)]
            datatype = datatype.Create_vector(count, length, stride)
        else:
            blocks = draw(st.lists(st.tuples(st.integers(0, 6), st.integers(0, 3)), max_size=3))
            datatype = datatype.Create_indexed([length for _, length in blocks], [first for first, _ in blocks])
        items = [first + offset for first, length in blocks for offset in range(length)]
        displacements = [item * extent + displacement for item in items for displacement in displacements]
        extent = (max(items) - min(items) + 1) * extent if items and extent else 0
    return datatype, displacements


@given(derived_datatypes(), st.integers(0, 3))
def test_the_bytes_of_a_message_are_those_of_the_type_map(
    datatype_and_type_map: tuple[Datatype, list[int]], count: int
) -> None:
    datatype, displacements = datatype_and_type_map
    all_bytes = [number * datatype.extent + displacement for number in range(count) for displacement in displacements]
    buffer = bytes(range(256)) * (max(all_bytes, default=0) // 256 + 1)
    data = as_send_data([buffer, count, datatype.Commit()])
    assert bytes(to_contiguous(data)) == bytes(buffer[displacement] for displacement in all_bytes)
    assert datatype.size == len(displacements)


@on_every_device
@pytest.mark.parametrize("rows", [3, 500])  # columns of short segments are copied, blocks of long ones are not
@pytest.mark.parametrize("width", [1, 100])
def test_columns_are_received_as_rows_and_rows_as_columns(ranks_of: type[Ranks], rows: int, width: int) -> None:
    matrix = np.arange(rows * 3 * width, dtype=np.float64).reshape(rows, 3 * width)
    columns = DOUBLE.Create_vector(rows, width, 3 * width).Commit()

    async def sender(comm: Comm) -> None:
        await comm.Send([matrix, (1, 0), columns], 1)
        await comm.Ssend([matrix.reshape(-1)[width:], 1, columns], 1)

    async def receiver(comm: Comm) -> None:
        packed, status = np.zeros((rows, width)), Status()
        await comm.Recv(packed, status=status)
        assert (packed == matrix[:, :width]).all()
        assert status.Get_count(columns) == 1
        assert status.Get_count(DOUBLE) == rows * width
        target = np.full((rows, 3 * width), -1.0)
        await comm.Recv([target, 1, columns], 0)
        assert (target[:, :width] == matrix[:, width : 2 * width]).all()
        assert (target[:, width:] == -1).all(), "the gaps between the segments are unchanged"

    ranks = ranks_of(2)
    ranks.run(sender, receiver)
    assert ranks.is_idle()


@on_every_device
@pytest.mark.parametrize("length", [2, 700])
def test_a_message_longer_than_the_segments_fills_them_and_is_an_error(ranks_of: type[Ranks], length: int) -> None:
    gapped = BYTE.Create_indexed([length, length], [0, 2 * length]).Commit()

    async def sender(comm: Comm) -> None:
        await comm.Send(bytes([1, 2, 3]) * length, 1)
        await comm.Send(b"\7", 1)

    async def receiver(comm: Comm) -> None:
        buffer, status = bytearray(3 * length), Status()
        with pytest.raises(MPIError) as raised:
            await comm.Recv([buffer, 1, gapped], status=status)
        assert raised.value.Get_error_class() == ERR_TRUNCATE
        sent = bytes([1, 2, 3]) * length
        assert buffer == sent[:length] + bytes(length) + sent[length : 2 * length]
        assert status.count == 2 * length
        await comm.Recv([buffer, 1, gapped], status=status)
        assert (buffer[0], buffer[1]) == (7, sent[1]), "a shorter message leaves the rest unchanged"
        assert status.Get_count(gapped) == UNDEFINED

    ranks = ranks_of(2)
    ranks.run(sender, receiver)
    assert ranks.is_idle()


@pytest.mark.parametrize("count", [2, 5, 7, 8, 300])
def test_emps_nic_gathers_and_scatters_long_segments(count: int) -> None:
    """A chain of descriptors names up to seven pages, a list more; all descriptors are free again at the end."""
    blocks = BYTE.Create_vector(count, 1000, 1500).Commit()
    segment_counts: list[int] = []
    ranks = Ranks(settings=Settings(descriptors=8))
    nic = ranks.wires.nics[0]
    dma_read = nic.dma_read
    nic.dma_read = lambda segments: segment_counts.append(len(segments)) or dma_read(segments)  # type: ignore[method-assign, func-returns-value]
    data = np.random.default_rng(count).bytes(1500 * count)

    async def sender(comm: Comm) -> None:
        await comm.Send([data, 1, blocks], 1)

    async def receiver(comm: Comm) -> None:
        buffer = bytearray(1500 * count)
        await comm.Recv([buffer, 1, blocks], 0)
        for offset in range(0, 1500 * count, 1500):
            assert buffer[offset : offset + 1000] == data[offset : offset + 1000]
            assert buffer[offset + 1000 : offset + 1500] == bytes(min(500, len(buffer) - offset - 1000))

    ranks.run(sender, receiver)
    assert ranks.is_idle()
    hosts = [agent.host for agent in ranks.wires.agents]
    assert all(isinstance(host, Endpoint) and host.pinned == 0 and host.free_descriptors == 8 for host in hosts)
    assert max(segment_counts) in (2, 3), "a frame of 1500 bytes has parts of two or three segments"


def test_more_noncontiguous_messages_than_descriptors_all_arrive() -> None:
    blocks = BYTE.Create_vector(4, 300, 400).Commit()

    async def program(comm: Comm) -> None:
        peer = 1 - comm.rank
        sends = [await comm.Isend([bytes([number]) * 1600, 1, blocks], peer) for number in range(50)]
        buffers = [bytearray(1600) for _ in range(50)]
        receives = [await comm.Irecv([buffer, 1, blocks], peer) for buffer in buffers]
        for request in sends + receives:
            await request.Wait()
        assert [buffer[0] for buffer in buffers] == list(range(50))
        assert all(buffer[300] == 0 for buffer in buffers)

    ranks = Ranks(settings=Settings(descriptors=8))
    ranks.run(program, program)
    assert ranks.is_idle()


def test_a_persistent_send_of_a_column_sends_the_contents_at_its_start() -> None:
    column = DOUBLE.Create_vector(3, 1, 2).Commit()
    values = array("d", range(6))

    async def program(comm: Comm) -> None:
        request = await comm.Send_init([values, 1, column], 0)
        for first in (0.0, 9.0):
            values[0] = first
            received = array("d", bytes(24))
            receive = await comm.Irecv(received, 0)
            await request.Start()
            await request.Wait()
            await receive.Wait()
            assert list(received) == [first, 2, 4]

    Ranks(1).run(program)


def test_another_handle_of_a_committed_type_can_be_used() -> None:
    vector = INT.Create_vector(2, 1, 2)
    assert not Datatype(vector).is_committed
    handle = Datatype(vector.Commit())
    assert handle == vector
    assert handle.is_committed
    vector.Free()
    assert handle.is_committed, "the handle of a freed type remains"
    assert not Datatype(vector)
