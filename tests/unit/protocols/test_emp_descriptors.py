"""EMP's descriptors: formats, ownership, and invalid descriptors of hosts."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from protocols.core.firmware import Adapter, Buffer
from protocols.core.memory import PAGE, HostMemory, Page
from protocols.emp import codec
from protocols.emp import descriptors as stat
from protocols.emp.descriptors import Descriptors, pack_page_list, unpack_head
from protocols.emp.firmware import Firmware
from protocols.emp.host import ANY_SOURCE, DescriptorsExhaustedError, EmpError, TruncatedError
from protocols.emp.settings import Settings
from tests.unit.protocols.emp_dialogue import TIMEOUT, content, counter_of, joined_nics


def test_the_641st_transfer_fails_for_lack_of_descriptors() -> None:
    wires, (sender, receiver) = joined_nics()
    receives = [receiver.post_receive(ANY_SOURCE, tag, bytearray(1)) for tag in range(640)]
    assert receiver.free_descriptors == 0
    with pytest.raises(DescriptorsExhaustedError, match="all 640 descriptors are in use"):
        receiver.post_receive(0, 640, bytearray(1))
    with pytest.raises(DescriptorsExhaustedError):
        receiver.post_send(0, 640, b"sends and receives share them")
    assert receiver.pinned == 640
    sender.post_send(1, 17, b"!")
    wires.exchange()
    assert receives[17].done
    assert receiver.post_receive(0, 640, bytearray(1)) is not None


def test_a_descriptor_passes_each_transfer_to_the_nic_and_back() -> None:
    wires, (sender, receiver) = joined_nics()
    receiver.post_receive(ANY_SOURCE, 7, bytearray(9))
    sender.post_send(1, 7, b"four")
    firmware = [agent.firmware for agent in wires.agents]
    assert all(isinstance(nic, Firmware) for nic in firmware)
    send_memory, receive_memory = [nic._card.descriptors.memory for nic in firmware]  # type: ignore[attr-defined]  # as asserted
    owner, kind, length, _, peer, tag, pages = unpack_head(send_memory)
    assert (owner, kind, length, peer, tag, pages) == (stat.NIC, stat.SEND, 4, 1, 7, 1)
    owner, kind, length, _, peer, tag, pages = unpack_head(receive_memory)
    assert (owner, kind, length, peer, tag, pages) == (stat.NIC, stat.RECEIVE, 9, ANY_SOURCE, 7, 1)
    wires.exchange()
    assert unpack_head(send_memory) == (stat.DONE, 0, 0, 4, 1, 7, 0)
    assert unpack_head(receive_memory) == (stat.DONE, 0, 0, 4, 0, 7, 0)


@pytest.mark.parametrize(
    ("size", "expected"),
    [
        (0, 1),
        (PAGE, 1),
        (PAGE + 1, 2),
        (3 * PAGE, 2),
        (3 * PAGE + 1, 3),
        (5 * PAGE, 3),
        (7 * PAGE, 4),
        (7 * PAGE + 1, 1),
    ],
)
def test_a_transfer_takes_as_many_descriptors_as_its_pages_need(size: int, expected: int) -> None:
    """Transfers of one page, of up to seven in a chain of up to four descriptors, of more in a list (section 4.2)."""
    _, (sender, _) = joined_nics()
    sender.post_send(1, 0, bytes(size))
    assert sender.free_descriptors == 640 - expected


def test_a_message_of_several_pages_takes_one_descriptor_if_none_are_consecutive() -> None:
    wires, (sender, receiver) = joined_nics(settings=Settings(descriptors=4))
    for tag in range(4):
        sender.post_send(1, tag, b"")
    for tag in (0, 2):
        receiver.post_receive(0, tag, bytearray(1))
    wires.elapse(TIMEOUT)
    assert sender.free_descriptors == 2
    buffer = bytearray(2 * PAGE)
    receive = receiver.post_receive(0, 9, buffer)
    sender.post_send(1, 9, content(2 * PAGE))
    assert sender.free_descriptors == 1
    wires.elapse(TIMEOUT)
    assert receive.done
    assert buffer == content(2 * PAGE)


@pytest.mark.parametrize("size", [1, PAGE + 5, 6 * PAGE + 5, 7 * PAGE + 5])
@pytest.mark.parametrize("shorter", [1, 5, PAGE])
def test_a_receive_shorter_than_its_message_is_filled_without_an_overrun(size: int, shorter: int) -> None:
    """An error to the receiver, as MPI requires; the send completes; no buffer is overrun."""
    capacity = max(0, size - shorter)
    guarded = bytearray(b"\xee" * (capacity + 2 * PAGE))
    wires, (sender, receiver) = joined_nics()
    receive = receiver.post_receive(0, 3, memoryview(guarded)[PAGE : PAGE + capacity])
    send = sender.post_send(1, 3, content(size))
    wires.exchange()
    assert send.result().length == size
    with pytest.raises(TruncatedError) as raised:
        receive.result()
    assert raised.value.received == (0, 3, size)
    assert guarded == b"\xee" * PAGE + content(size)[:capacity] + b"\xee" * PAGE
    assert receiver.free_descriptors == 640
    assert receiver.pinned == 0


def test_a_message_shorter_than_its_receive_leaves_the_rest_unchanged() -> None:
    wires, (sender, receiver) = joined_nics()
    buffer = bytearray(b"\xee" * 9000)
    receiver.post_receive(0, 3, buffer)
    sender.post_send(1, 3, content(5000))
    wires.exchange()
    assert buffer == content(5000) + b"\xee" * 4000


def test_a_buffer_is_released_when_its_transfer_is_done() -> None:
    wires, (sender, receiver) = joined_nics()
    send_buffer, receive_buffer = bytearray(content(50_000)), bytearray(50_000)
    receive = receiver.post_receive(0, 3, receive_buffer)
    send = sender.post_send(1, 3, send_buffer)
    with pytest.raises(BufferError):
        send_buffer.append(0)
    wires.exchange()
    del send, receive
    send_buffer.append(0)
    receive_buffer.append(0)


@pytest.mark.parametrize("source", [2, -1, 0xFFFE])
def test_a_nonexistent_node_is_rejected(source: int) -> None:
    _, (host, _) = joined_nics()
    with pytest.raises(ValueError, match="source must be 0 to 1"):
        host.post_receive(source, 0, bytearray(1))
    with pytest.raises(ValueError, match="destination must be 0 to 1"):
        host.post_send(source, 0, b"")
    assert host.free_descriptors == 640
    assert host.pinned == 0


class BareNic:
    """NIC with a host that writes arbitrary descriptors; records its completions."""

    def __init__(self, count: int = 8) -> None:
        self.memory = HostMemory()
        self.descriptors = Descriptors(count)
        self.completions: list[int] = []
        self.sent: list[bytes] = []
        addresses = [bytes([2, 0, 0, 0, 0, 1]), bytes([2, 0, 0, 0, 0, 2])]
        self.firmware = Firmware(
            Adapter(0, addresses), self, self.memory, self.descriptors, Settings(descriptors=count), codec
        )

    def dma_read(self, segments: Sequence[memoryview]) -> bytes:
        return b"".join(segments)

    def send(self, frame: Buffer) -> None:
        self.sent.append(bytes(frame))

    def send_later(self, make: Callable[[], bytes]) -> None:
        self.send(make())

    def dma_write(self, target: memoryview, data: Buffer) -> None:
        target[:] = data

    def post_completion(self, index: int) -> None:
        self.completions.append(index)

    def ring_doorbell(self, index: int, written: int, translated: int) -> None:
        raise AssertionError((index, written, translated))

    def stat(self, index: int) -> int:
        return self.descriptors.memory[index * stat.SIZE]


def test_descriptors_are_20_bytes_each() -> None:
    assert stat.SIZE == 20
    nic = BareNic(2)
    nic.descriptors.write(1, stat.SEND, nic.memory.pin(memoryview(b"x")), 1, 0)
    assert nic.stat(0) == stat.HOST
    assert nic.stat(1) == stat.NIC


@pytest.mark.parametrize("kind", [stat.SEND, stat.RECEIVE])
@pytest.mark.parametrize("pages", [1, 3, 7])
def test_unpinned_memory_is_not_accessed(kind: int, pages: int) -> None:
    """Addresses one page too far, one byte too far, in another region, and in none."""
    nic = BareNic()
    buffer = bytearray(pages * PAGE)
    valid_pages = nic.memory.pin(memoryview(buffer))
    base = valid_pages[0][0]
    for bad_page in (
        (base + pages * PAGE, 1),
        (base + pages * PAGE - 1, 2),
        (base + (1 << 32), 1),
        (0, 1),
        (2**64 - 1, 1),
    ):
        bad_pages: list[Page] = [*valid_pages[:-1], bad_page]
        nic.descriptors.write(0, kind | (stat.CHAIN if pages > 1 else stat.ONE_PAGE), bad_pages, 1, 0)
        nic.firmware.on_doorbell(0, 0)
        assert nic.stat(0) == stat.INVALID
    assert nic.completions == [0] * 5
    assert nic.firmware.counters.invalid == 5
    assert nic.sent == []
    assert nic.firmware.pending_work() == []


def test_a_page_list_and_its_pages_must_be_pinned() -> None:
    nic = BareNic()
    pages = nic.memory.pin(memoryview(bytearray(9 * PAGE)))
    page_list = nic.memory.pin(memoryview(pack_page_list(pages)))
    list_with_unpinned_page = nic.memory.pin(memoryview(pack_page_list([*pages[:-1], (77, 10)])))
    for entry, count in (
        (page_list[0], 10),
        ((page_list[0][0] + 1, 90), 9),
        ((5, 5), 9),
        (list_with_unpinned_page[0], 9),
        (page_list[0], 0xFFFF),
    ):
        nic.descriptors.write(0, stat.SEND | stat.INDIRECT, [entry], 1, 0, page_count=count)
        nic.firmware.on_doorbell(0, 0)
        assert nic.stat(0) == stat.INVALID
    assert nic.sent == []
    nic.descriptors.write(0, stat.SEND | stat.INDIRECT, page_list[:1], 1, 0, page_count=9)
    nic.firmware.on_doorbell(0, 0)
    assert nic.stat(0) == stat.NIC
    assert nic.sent


def test_memory_is_not_accessible_after_it_was_unpinned() -> None:
    nic = BareNic()
    pages = nic.memory.pin(memoryview(b"secret"))
    nic.memory.unpin(pages[0][0])
    nic.descriptors.write(0, stat.SEND, pages, 1, 0)
    nic.firmware.on_doorbell(0, 0)
    assert nic.stat(0) == stat.INVALID


@pytest.mark.parametrize(
    ("kind", "pages", "index"),
    [
        (stat.CHAIN, 1, 0),
        (stat.CHAIN, 8, 0),
        (stat.CHAIN, 7, 5),
        (stat.ONE_PAGE, 2, 0),
        (3 << 1, 1, 0),
        (stat.INDIRECT, 0, 0),
    ],
)
def test_an_invalid_format_is_rejected(kind: int, pages: int, index: int) -> None:
    """Too many pages, too few, a chain beyond the last descriptor, an unknown format."""
    nic = BareNic()
    page = nic.memory.pin(memoryview(bytearray(PAGE)))
    nic.descriptors.write(index, kind, page, 1, 0, page_count=pages)
    nic.firmware.on_doorbell(0, index)
    assert nic.stat(index) == stat.INVALID


def test_the_nic_also_refuses_a_nonexistent_source_or_destination() -> None:
    nic = BareNic()
    page = nic.memory.pin(memoryview(bytearray(1)))
    for kind, peer in ((stat.SEND, 2), (stat.SEND, ANY_SOURCE), (stat.RECEIVE, 2)):
        nic.descriptors.write(0, kind, page, peer, 0)
        nic.firmware.on_doorbell(0, 0)
        assert nic.stat(0) == stat.INVALID


@pytest.mark.parametrize("index", [-1, 16, 1 << 40])
def test_a_doorbell_for_a_nonexistent_descriptor_is_only_counted(index: int) -> None:
    nic = BareNic()
    nic.firmware.on_doorbell(0, index)
    assert nic.firmware.counters.invalid == 1
    assert nic.completions == []


def test_a_doorbell_for_a_descriptor_that_the_host_owns_changes_nothing() -> None:
    nic = BareNic()
    nic.firmware.on_doorbell(0, 3)
    assert nic.firmware.counters.invalid == 1
    assert nic.stat(3) == stat.HOST
    assert nic.completions == []


def test_a_transfer_in_progress_continues_when_its_host_overwrites_the_descriptor() -> None:
    """The first transfer continues; the host gets its completion once."""
    nic = BareNic()
    first, second = nic.memory.pin(memoryview(b"first")), nic.memory.pin(memoryview(b"second"))
    nic.descriptors.write(0, stat.SEND, first, 0, 1)
    nic.firmware.on_doorbell(0, 0)
    nic.descriptors.write(0, stat.SEND, second, 0, 1)
    nic.firmware.on_doorbell(0, 0)
    nic.firmware.on_doorbell(0, 0)
    assert nic.firmware.counters.invalid == 2
    buffer = bytearray(6)
    nic.descriptors.write(1, stat.RECEIVE, nic.memory.pin(memoryview(buffer)), 0, 1)
    nic.firmware.on_doorbell(0, 1)
    nic.firmware.on_timer(TIMEOUT)
    assert nic.completions == [1, 0]
    assert buffer == b"first\0"
    nic.descriptors.write(0, stat.SEND, second, 0, 2)
    nic.firmware.on_doorbell(TIMEOUT, 0)
    assert nic.firmware.counters.invalid == 2, "the descriptor was the host's again"


def test_a_repeated_doorbell_starts_nothing() -> None:
    """A second doorbell is ignored during the transfer, after it, and after the host has seen the completion."""
    wires, (sender, receiver) = joined_nics()
    firmware, nic = wires.agents[0].firmware, wires.nics[0]
    completions: list[int] = []
    nic.post_completion = completions.append  # type: ignore[method-assign]
    receive = receiver.post_receive(0, 1, bytearray(4))
    send = sender.post_send(1, 1, b"once")
    firmware.on_doorbell(wires.now, 0)
    wires.exchange()
    firmware.on_doorbell(wires.now, 0)
    assert completions == [0]
    assert receive.done
    sender.on_completion(0)
    assert send.done
    firmware.on_doorbell(wires.now, 0)
    assert counter_of(wires, 0, "invalid") == 3
    assert counter_of(wires, 0, "frames_sent") == 1
    assert wires.take(0) == []


def test_a_message_is_gathered_from_segments_of_any_length() -> None:
    """Scatter and gather, section 4.2: "we always provide a 16-bit length field along with each page address"."""
    nic = BareNic()
    source = content(40_000)
    pages: list[Page] = []
    base = nic.memory.pin(memoryview(source))[0][0]
    for offset, length in ((30_000, 10_000), (0, 1), (17, 0), (5000, 3333), (1, 0)):
        pages.append((base + offset, length))
    expected = b"".join(source[address - base : address - base + length] for address, length in pages)
    page_list = nic.memory.pin(memoryview(pack_page_list(pages)))
    target = bytearray(len(expected))
    target_pages = nic.memory.pin(memoryview(target))
    nic.descriptors.write(1, stat.RECEIVE | stat.CHAIN, target_pages, 0, 1)
    nic.firmware.on_doorbell(0, 1)
    nic.descriptors.write(4, stat.SEND | stat.INDIRECT, page_list[:1], 0, 1, page_count=len(pages))
    nic.firmware.on_doorbell(0, 4)
    assert bytes(target) == expected
    assert nic.completions == [1, 4]


def test_invalid_tags_and_buffers_are_rejected() -> None:
    _, (host, _) = joined_nics()
    for tag in (-1, 1 << 32):
        with pytest.raises(ValueError, match="tag"):
            host.post_send(1, tag, b"")
    with pytest.raises(ValueError, match="tag"):
        host.post_receive(1, 1 << 32, bytearray(1))
    segments = [memoryview(b"one"), memoryview(b"two")]
    with pytest.raises(ValueError, match="tag must be"):
        host.post_send_iov(1, 1 << 32, segments)
    with pytest.raises(ValueError, match="destination must be"):
        host.post_send_iov(2, 0, segments)
    with pytest.raises(ValueError, match="writable"):
        host.post_receive_iov(1, 0, segments)
    with pytest.raises(ValueError, match="writable"):
        host.post_receive(1, 1, memoryview(b"constant"))
    assert host.free_descriptors == 640
    assert host.pinned == 0


def test_a_descriptor_that_the_nic_refuses_fails_its_transfer() -> None:
    wires, (host, _) = joined_nics()
    nic = wires.nics[0]
    on_doorbell = wires.agents[0].firmware.on_doorbell
    doorbells: list[int] = []
    nic.ring_doorbell = lambda index, written, translated: doorbells.append(index)  # type: ignore[method-assign]  # noqa: ARG005
    send = host.post_send(1, 0, bytes(2 * PAGE))
    host._memory.unpin(1 << 32)  # the page that the descriptor names
    host._memory.pin(memoryview(b"x"))
    host._transfers[0].address = 2 << 32
    on_doorbell(0, doorbells[0])
    with pytest.raises(EmpError, match="refused"):
        send.result()
    assert counter_of(wires, 0, "invalid") == 1
