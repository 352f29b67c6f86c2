"""Pulls: the driver's protocol for messages above the eager limit, which the receiver fetches.

A pull has four blocks of 32 replies in flight. When a later block is complete before the first one, replies of the
first block are probably lost, and the block is requested again, once until it is complete or a time-out has expired
(`omx_pull.c`).

A message of an endpoint on the same node whose driver is in this process takes one copy, from the sender's memory to the
receiver's, and no frame (`omx_shared.c`).
"""

from __future__ import annotations

from typing import Final

from protocols.core.firmware import Buffer
from protocols.core.memory import UnpinnedError
from protocols.openmx import states
from protocols.openmx.codec import NACK_TYPE_BAD_ENDPOINT, NACK_TYPE_BAD_RDMAWIN, NACK_TYPE_BAD_SESSION
from protocols.openmx.driver_endpoint import Driver, DriverEndpoint
from protocols.openmx.endpoint_memory import PULL_DONE, PULLS, Command
from protocols.openmx.mx_names import BLOCK_FRAMES, BLOCKS, PULL_MAGIC, Status

_NUMBER_BITS: Final = 6
assert PULLS == 1 << _NUMBER_BITS
_SPREAD: Final = 0x9E37_79B1
"""Distance between the first serial numbers of two sessions."""
_SERIALS: Final = 1 << 32 - _NUMBER_BITS
_REFUSALS: Final = {
    NACK_TYPE_BAD_ENDPOINT: Status.BAD_ENDPOINT,
    NACK_TYPE_BAD_SESSION: Status.BAD_SESSION,
    NACK_TYPE_BAD_RDMAWIN: Status.BAD_RDMAWIN,
}


class Block:
    """A requested block. first: index of its first frame. count: number of frames. missing: a bit for each missing frame."""

    __slots__ = ("count", "first", "missing")

    def __init__(self, first: int, count: int) -> None:
        self.first: Final = first
        self.count: Final = count
        self.missing = (1 << count) - 1


class Pull:
    """A pull at the requesting endpoint. blocks: at most BLOCKS requested blocks in order, from the first incomplete one on;
    later ones may be complete. frames: number of frames. next_frame: index of the first frame that was not requested yet.
    retries: time-outs since a block became complete."""

    __slots__ = ("blocks", "command", "endpoint", "frames", "handle", "next_frame", "retries", "state", "target")

    def __init__(
        self, handle: int, endpoint: DriverEndpoint, command: Command, target: memoryview, fragment_size: int
    ) -> None:
        self.handle: Final = handle
        self.endpoint: Final = endpoint
        self.command: Final = command
        self.target: Final = target
        self.frames: Final = -(-command.length // fragment_size)
        self.state = states.PULL.initial
        self.blocks: list[Block] = []
        self.next_frame = 0
        self.retries = 0


class Pulls:
    """Both sides of the pulls of one NIC."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._pulls: dict[int, Pull] = {}
        self._serial = 0

    def begin(self, now: int, endpoint: DriverEndpoint, command: Command) -> None:
        """Start a pull. command: `number` is the pull's, `match` and `turn` are the number and generation of the peer's
        region, and `address` is the destination of the data."""
        driver = self._driver
        if command.number >= PULLS or not command.length or self._pull_of(endpoint, command.number):
            driver.counters.invalid += 1
            return
        try:
            target = driver.memory.view(command.address, command.length)
        except UnpinnedError:
            driver.counters.invalid += 1
            self._post_result(endpoint, command, Status.BAD_RDMAWIN)
            return
        sender = driver.driver_on_node(command.peer)
        if sender is not None:
            self._copy(endpoint, command, target, sender)
            return
        handle = self._next_handle(endpoint, command.number)
        self._pulls[handle] = pull = Pull(handle, endpoint, command, target, driver.fragment_size)
        self._request_next(now, pull)

    def _copy(self, endpoint: DriverEndpoint, command: Command, target: memoryview, sender: Driver) -> None:
        """Copy a message from the memory of a rank on this node."""
        data = _view_region(
            sender, command.dst_endpoint, command.session, command.match, command.turn, 0, command.length
        )
        if isinstance(data, int):
            self._post_result(endpoint, command, _REFUSALS.get(data, Status.ENDPOINT_CLOSED))
            return
        self._driver.counters.shared_pull += 1
        self._store(target, data)
        self._post_result(endpoint, command, Status.SUCCESS)

    def _next_handle(self, endpoint: DriverEndpoint, number: int) -> int:
        """Return a handle that is not in use and differs from those of recent pulls with the same number, even before a
        restart: late replies to those pulls may still arrive. Serial numbers repeat after 2^26 pulls."""
        while True:
            self._serial += 1
            handle = (endpoint.session * _SPREAD + self._serial) % _SERIALS << _NUMBER_BITS | number
            if handle not in self._pulls:
                return handle

    def end_all(self, endpoint: DriverEndpoint) -> None:
        """End the pulls of a closed endpoint."""
        for pull in [pull for pull in self._pulls.values() if pull.endpoint is endpoint]:
            self._end(pull, "ended by the library")

    def end(self, endpoint: DriverEndpoint, number: int) -> None:
        """End a pull that the library has abandoned."""
        pull = self._pull_of(endpoint, number)
        if pull is not None:
            self._end(pull, "ended by the library")

    def expire(self, now: int, handle: int) -> None:
        """Request the missing frames again if no first block became complete within the time-out, or give up."""
        pull, resends = self._pulls[handle], self._driver.settings.resends
        pull.retries += 1
        if resends and pull.retries > resends:
            self._finish(pull, "gave up", Status.ENDPOINT_UNREACHABLE)
            return
        self._step(pull, "time-out")
        for block in pull.blocks:
            if block.missing:
                self._request_block(pull, block)
        self._set_timer(now, pull)

    def pending_work(self) -> list[str]:
        return [
            f"a pull of {pull.command.length} bytes from node {pull.command.peer}, frame {pull.blocks[0].first} and later"
            for pull in self._pulls.values()
        ]

    # The requesting endpoint.

    def receive_reply(self, now: int, frame: bytes) -> None:
        """Handle the data of a pull reply."""
        driver = self._driver
        _, src, peer_index, frame_seqnum, offset, handle, magic, data = driver.codec.unpack_pull_reply(frame)
        pull = self._find(src, peer_index, handle, magic)
        if pull is None:
            driver.counters.drop_pull_reply_bad_wire_handle += 1
            return
        driver.look_up(pull.endpoint)
        index, rest = divmod(offset, driver.fragment_size)
        length = min(driver.fragment_size, pull.command.length - offset)
        if rest or len(data) != length or frame_seqnum != index & 0xFF:
            driver.counters.drop_pull_reply_bad_seqnum += 1
            return
        block = next((block for block in pull.blocks if block.first <= index < block.first + block.count), None)
        bit = 1 << index - block.first if block is not None else 0
        if block is None or not block.missing & bit:
            self._step(pull, "reply again")
            return
        block.missing &= ~bit
        self._store(pull.target[offset : offset + length], data)
        if pull.next_frame == pull.frames and not [pending for pending in pull.blocks if pending.missing]:
            self._finish(pull, "last reply", Status.SUCCESS)
            return
        self._step(pull, "reply")
        if not block.missing:
            self._complete(now, pull, block)

    def receive_nack(self, frame: bytes) -> None:
        """Handle the refusal of a pull."""
        driver = self._driver
        _, src, peer_index, _, nack_type, handle, magic, _ = driver.codec.unpack_nack_mcp(frame)
        pull = self._find(src, peer_index, handle, magic)
        if pull is None:
            driver.counters.drop_nack_mcp_bad_wire_handle += 1
        else:
            self._finish(pull, "refused", _REFUSALS.get(nack_type, Status.ENDPOINT_CLOSED))

    def _find(self, src: bytes, peer_index: int, handle: int, magic: int) -> Pull | None:
        pull = self._pulls.get(handle)
        if (
            pull is None
            or self._driver.sender(src, peer_index) != pull.command.peer
            or magic != pull.endpoint.index ^ PULL_MAGIC
        ):
            return None
        return pull

    def _pull_of(self, endpoint: DriverEndpoint, number: int) -> Pull | None:
        pulls = self._pulls.values()
        return next((pull for pull in pulls if pull.endpoint is endpoint and pull.command.number == number), None)

    def _store(self, target: memoryview, data: Buffer) -> None:
        """Copy the data of a reply, or of a message on this node, by the core or the copy engine."""
        driver, limit = self._driver, self._driver.settings.offload
        if limit and len(data) >= limit:
            target[:] = data
            driver.work.offload(len(data))
        else:
            driver.nic.dma_write(target, data)

    def _complete(self, now: int, pull: Pull, block: Block) -> None:
        """Request the next blocks after a complete block, or the first block again if it is still incomplete."""
        pull.retries = 0
        if block is pull.blocks[0]:
            self._step(pull, "first block is complete")
            while pull.blocks and not pull.blocks[0].missing:
                pull.blocks.pop(0)
            self._request_next(now, pull)
            return
        if pull.state == states.PULLING:
            self._request_block(pull, pull.blocks[0])
        self._step(pull, "later block is complete")

    def _request_next(self, now: int, pull: Pull) -> None:
        while pull.next_frame < pull.frames and len(pull.blocks) < BLOCKS:
            block = Block(pull.next_frame, min(BLOCK_FRAMES, pull.frames - pull.next_frame))
            pull.next_frame += block.count
            pull.blocks.append(block)
            self._request_block(pull, block)
        self._set_timer(now, pull)

    def _request_block(self, pull: Pull, block: Block) -> None:
        """Request a block, from the first to the last missing frame."""
        driver, command = self._driver, pull.command
        begin = block.first + ((block.missing & -block.missing).bit_length() - 1)
        end = block.first + block.missing.bit_length()
        length = min(end * driver.fragment_size, command.length) - begin * driver.fragment_size
        driver.counters.send_pull_req += 1
        driver.send(
            driver.codec.pack_pull(
                driver.addresses[command.peer], driver.address, driver.number, command.dst_endpoint, pull.endpoint.index,
                command.session, command.length, command.match, command.turn, 0, pull.handle,
                pull.endpoint.index ^ PULL_MAGIC, 0, length, begin,
            )
        )  # fmt: skip

    def _set_timer(self, now: int, pull: Pull) -> None:
        self._driver.timers.set(pull.handle, now + self._driver.settings.pull_timeout)

    def _step(self, pull: Pull, event: str) -> None:
        row = states.PULL.row(pull.state, event)
        pull.state = row.next_state
        self._driver.counters.add(row.counters)

    def _finish(self, pull: Pull, event: str, status: Status) -> None:
        self._end(pull, event)
        self._post_result(pull.endpoint, pull.command, status)

    def _end(self, pull: Pull, event: str) -> None:
        self._step(pull, event)
        del self._pulls[pull.handle]
        self._driver.timers.cancel(pull.handle)

    def _post_result(self, endpoint: DriverEndpoint, command: Command, status: Status) -> None:
        endpoint.ring.write_result(command.number, command.word & 0xFFFF, status)
        self._driver.nic.post_completion(endpoint.index << 16 | PULL_DONE | command.number)

    # The serving endpoint.

    def receive_request(self, frame: bytes) -> None:
        """Answer a request for a block."""
        driver = self._driver
        (
            _, src, peer_index, dst, _, session, total, region_id, turn, begin, handle, magic, skipped, length,
            first, _,
        ) = driver.codec.unpack_pull(frame)  # fmt: skip
        peer = driver.sender(src, peer_index)
        if peer < 0:
            driver.counters.drop_bad_peer_addr += 1
            return
        driver.counters.recv_pull_req += 1
        endpoint = driver.endpoints.get(dst)
        if endpoint is not None and endpoint.state == states.OPEN:
            driver.look_up(endpoint)
        data = _view_region(driver, dst, session, region_id, turn, begin, total)
        offset = first * driver.fragment_size + skipped
        if not isinstance(data, int) and (offset + length > total or length > BLOCK_FRAMES * driver.fragment_size):
            data = NACK_TYPE_BAD_RDMAWIN
        if isinstance(data, int):
            self._refuse(peer, dst, data, handle, magic)
            return
        self._reply(peer, handle, magic, data[offset : offset + length], first, offset)

    def _reply(self, peer: int, handle: int, magic: int, data: memoryview, first: int, offset: int) -> None:
        driver = self._driver
        to, fragment_size, pack, nic = (
            driver.addresses[peer],
            driver.fragment_size,
            driver.codec.pack_pull_reply,
            driver.nic,
        )
        for index, start in enumerate(range(0, len(data), fragment_size)):
            payload = nic.dma_read([data[start : start + fragment_size]])
            driver.counters.send_pull_reply += 1
            driver.send(
                pack(to, driver.address, driver.number, first + index & 0xFF, offset + start, handle, magic, payload)
            )

    def _refuse(self, peer: int, endpoint: int, nack_type: int, handle: int, magic: int) -> None:
        driver = self._driver
        driver.counters.send_nack_mcp += 1
        driver.send(
            driver.codec.pack_nack_mcp(
                driver.addresses[peer], driver.address, driver.number, endpoint, nack_type, handle, magic
            )
        )


def _view_region(
    driver: Driver, endpoint_index: int, session: int, region_id: int, turn: int, begin: int, length: int
) -> memoryview | int:
    """Return `length` bytes of a region that an endpoint has registered, or the type of the refusal."""
    endpoint = driver.endpoints.get(endpoint_index)
    if endpoint is None or endpoint.state != states.OPEN:
        return NACK_TYPE_BAD_ENDPOINT
    if endpoint.session != session:
        return NACK_TYPE_BAD_SESSION
    region = endpoint.regions.get(region_id)
    if region is None or region.turn != turn or begin + length > region.length:
        return NACK_TYPE_BAD_RDMAWIN
    try:
        return driver.memory.view(region.address + begin, length)
    except UnpinnedError:
        return NACK_TYPE_BAD_RDMAWIN
