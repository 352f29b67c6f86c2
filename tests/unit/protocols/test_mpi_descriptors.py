"""More concurrent transfers than the NIC has descriptors."""

# ruff: noqa: ARG002 -- the endpoint uses only its descriptors

from __future__ import annotations

from collections.abc import Callable

import pytest

from protocols.core.completion import Completion
from protocols.emp.settings import Settings
from protocols.mpi import ERR_NO_MEM, ERR_TRUNCATE, Comm, Request
from protocols.mpi.device import Device
from protocols.mpi.mpi_errors import Envelope, MPIError
from tests.unit.protocols.emp_ranks import Ranks


class LimitedEndpoint:
    """Endpoint with few descriptors, whose transfers complete at once, or when a test completes them."""

    rank, size, contexts, max_tag, max_message_size = 0, 2, 2, 100, 1000

    def __init__(self, free_count: int, completes_at_once: bool = False) -> None:
        self.free_descriptors = free_count
        self.completes_at_once = completes_at_once
        self.begun: list[tuple[str, int]] = []
        self.pending: list[Completion[Envelope]] = []

    def send(
        self, destination: int, context: int, tag: int, data: memoryview, completion: Completion[Envelope]
    ) -> bool:
        return self._begin("send", tag, completion)

    def receive(
        self, source: int, context: int, tag: int, buffer: memoryview, completion: Completion[Envelope]
    ) -> bool:
        return self._begin("receive", tag, completion)

    def complete_oldest(self) -> None:
        self.free_descriptors += 1
        self.pending.pop(0).complete(Envelope(1, 0, 0))

    def _begin(self, kind: str, tag: int, completion: Completion[Envelope]) -> bool:
        if not self.free_descriptors:
            return False
        self.free_descriptors -= 1
        self.begun.append((kind, tag))
        self.pending.append(completion)
        if self.completes_at_once:
            self.complete_oldest()
        return True


def test_transfers_that_wait_for_descriptors_begin_in_order() -> None:
    endpoint = LimitedEndpoint(2)
    device = Device(endpoint)
    sends = [device.send(1, 0, tag, memoryview(b"")) for tag in range(5)]
    assert endpoint.begun == [("send", 0), ("send", 1)]
    assert device.pending_work() == [
        f"a send to rank 1, tag {tag}, 0 bytes: no descriptor is free" for tag in (2, 3, 4)
    ]
    while endpoint.pending:
        endpoint.complete_oldest()
    assert endpoint.begun == [("send", tag) for tag in range(5)]
    assert all(send.done for send in sends)
    assert device.pending_work() == []


def test_a_send_does_not_overtake_a_queued_send_although_a_descriptor_is_free() -> None:
    endpoint = LimitedEndpoint(1)
    device = Device(endpoint)
    for tag in (0, 1):
        device.send(1, 0, tag, memoryview(b""))
    endpoint.free_descriptors += 1  # the device has not been notified
    device.send(1, 0, 2, memoryview(b""))
    endpoint.complete_oldest()
    endpoint.complete_oldest()
    assert endpoint.begun == [("send", 0), ("send", 1), ("send", 2)]


def test_ten_thousand_transfers_that_complete_at_once_do_not_grow_the_stack() -> None:
    endpoint = LimitedEndpoint(1)
    device = Device(endpoint)
    sends = [device.send(1, 0, 0, memoryview(b"")) for _ in range(10_000)]
    endpoint.completes_at_once = True
    endpoint.complete_oldest()
    assert all(send.done for send in sends)


def test_a_callback_may_begin_transfers_while_others_are_queued() -> None:
    endpoint = LimitedEndpoint(1)
    device = Device(endpoint)

    def reply(tag: int) -> Callable[[Completion[Envelope]], object]:
        return lambda _: device.send(1, 0, tag, memoryview(b""))

    device.receive(1, 0, 1, memoryview(b"")).add_callback(reply(10))
    device.receive(1, 0, 2, memoryview(b"")).add_callback(reply(20))
    while endpoint.pending:
        endpoint.complete_oldest()
    assert sorted(endpoint.begun) == [("receive", 1), ("receive", 2), ("send", 10), ("send", 20)]


def test_a_transfer_that_needs_more_descriptors_than_exist_fails() -> None:
    device = Device(LimitedEndpoint(0))
    for transfer in (device.send(1, 0, 0, memoryview(b"")), device.receive(-1, 0, -1, memoryview(b""))):
        with pytest.raises(MPIError, match="the NIC has too few descriptors") as raised:
            transfer.result()
        assert raised.value.Get_error_class() == ERR_NO_MEM
    assert device.pending_work() == []


@pytest.mark.parametrize("descriptors", [8, 640])
def test_both_ranks_send_two_thousand_messages_before_they_receive(descriptors: int) -> None:
    async def program(comm: Comm) -> None:
        peer = 1 - comm.rank
        sends = [await comm.Isend(number.to_bytes(2, "big"), peer, number % 5) for number in range(2000)]
        buffers = [bytearray(2) for _ in range(2000)]
        receives = [await comm.Irecv(buffer, peer) for buffer in buffers]
        await Request.Waitall(sends + receives)
        assert [int.from_bytes(buffer, "big") for buffer in buffers] == list(range(2000))

    ranks = Ranks(settings=Settings(descriptors=descriptors))
    ranks.run(program, program)
    assert ranks.is_idle()


@pytest.mark.parametrize("descriptors", [8, 640])
def test_both_ranks_begin_two_thousand_receives_before_they_send(descriptors: int) -> None:
    async def program(comm: Comm) -> None:
        peer = 1 - comm.rank
        receives = [await comm.irecv(source=peer) for _ in range(2000)]
        sends = [await comm.isend(number, peer) for number in range(2000)]
        assert await Request.waitall(receives) == list(range(2000))
        await Request.Waitall(sends)

    ranks = Ranks(settings=Settings(descriptors=descriptors))
    ranks.run(program, program)
    assert ranks.is_idle()


def test_messages_of_several_descriptors_wait_for_all_of_them() -> None:
    async def program(comm: Comm) -> None:
        peer = 1 - comm.rank
        sizes = [number * 3001 % 30_000 for number in range(100)]  # one page to a list: one to four descriptors
        sends = [await comm.Isend(bytes([size % 251]) * size, peer) for size in sizes]
        buffers = [bytearray(size) for size in sizes]
        receives = [await comm.Irecv(buffer, peer) for buffer in buffers]
        await Request.Waitall(sends + receives)
        assert all(buffer == bytes([size % 251]) * size for buffer, size in zip(buffers, sizes, strict=True))

    ranks = Ranks(settings=Settings(descriptors=16))
    ranks.run(program, program)
    assert ranks.is_idle()


def test_a_failed_receive_frees_its_descriptor_for_the_next() -> None:
    async def sender(comm: Comm) -> None:
        for _ in range(20):
            await comm.Send(b"too long", 1)

    async def receiver(comm: Comm) -> None:
        requests = [await comm.Irecv(bytearray(1)) for _ in range(20)]
        for request in requests:
            with pytest.raises(MPIError) as raised:
                await request
            assert raised.value.Get_error_class() == ERR_TRUNCATE

    ranks = Ranks(settings=Settings(descriptors=4))
    ranks.run(sender, receiver)
    assert ranks.is_idle()


def test_a_probe_has_a_descriptor_although_the_mailbox_and_transfers_use_as_many_as_they_may() -> None:
    async def busy(comm: Comm) -> bool:
        await comm.Barrier()  # creates the mailbox, whose receives use descriptors, too
        for _ in range(500):
            await comm.Irecv(bytearray(1), 1, 1)
        for _ in range(500):
            await comm.Isend(b"", 1, 2)
        found = [await comm.Iprobe(1, 3) for _ in range(10)]
        return any(found)

    async def peer(comm: Comm) -> bool:
        await comm.Barrier()
        return not (await comm.Isend(b"x", 0, 3)).is_complete

    assert Ranks(settings=Settings(descriptors=640)).run(busy, peer) == [True, True]
