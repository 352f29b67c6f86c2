"""A program of VIPL calls with the same outcome under every clock: connections of both kinds, refusals, a
request that expires, sends and RDMA writes."""

from __future__ import annotations

import struct
from typing import Final

from protocols.via.host import ViaNic
from protocols.via.vip_descriptors import Segment
from protocols.via.vipl_names import IMMEDIATE, OP_RDMAWRITE, OP_SENDRECV, Result, ViaError, ViState
from protocols.via.virtual_interface import Descriptor, Vi
from testbed.workloads.form import Native, Node

MILLISECOND: Final = 1_000_000
SIZES: Final = (0, 1, 1_400, 9_000)
LARGEST: Final = max(SIZES)
_PLACE: Final = struct.Struct("!QI")  # address and handle of memory that the peer may write


class Conversation(Native[ViaNic]):
    """Every pair of nodes has two connections, by server and client and by peers. A node's result is what came of each
    step, in its own order."""

    protocol = "via"

    async def program(self, library: ViaNic, node: Node) -> list[str]:
        nic, history = library, list[str]()
        assert [nic.name_by_node(number) for number in range(nic.size)] == list(node.names)
        assert nic.number == nic.node_by_name(node.name)
        ptag = await nic.create_ptag()
        others = [number for number in range(nic.size) if number != nic.number]
        for other in others:
            vi = await nic.create_vi(ptag)
            history.append(f"node {other}: {await _refused(nic, vi, other, node)}")
            await vi.destroy()
        for other in others:
            for kind in ("server", "peers"):
                history += [f"node {other}, {kind}: {step}" for step in await _talk(nic, node, ptag, other, kind)]
        lonely = await nic.create_vi(ptag)
        try:
            await lonely.connect_peer(others[0], b"nobody asks %d" % nic.number, 20 * MILLISECOND)
        except ViaError as error:
            history.append(error.result.name)
        return history


async def _refused(nic: ViaNic, vi: Vi, other: int, node: Node) -> str:
    """The node with the greater number asks until its server rejects it. An answer that no server waits may be in flight
    when the server comes, rejects the request's repetition and leaves: then no server waits any more."""
    name = b"refused %d %d" % (min(nic.number, other), max(nic.number, other))
    if nic.number < other:
        request = await nic.connect_wait(name)
        await nic.reject(request)
        return f"refused node {request.node}"
    await node.sleep(5 * MILLISECOND)
    for _ in range(500):
        try:
            await vi.connect_request(other, name)
        except ViaError as error:
            if error.result is Result.REJECT:
                return "was refused"
        await node.sleep(MILLISECOND)
    return "was refused"


async def _talk(nic: ViaNic, node: Node, ptag: int, other: int, kind: str) -> list[str]:
    """One connection with another node: tell where memory is, then write there and send in turn. Both sides disconnect.

    The other side's announcement has a separate buffer: its messages may arrive before this program continues."""
    area, outgoing, inbox = nic.allocate(LARGEST * len(SIZES)), nic.allocate(LARGEST), nic.allocate(LARGEST)
    place = nic.allocate(_PLACE.size)
    memory = await nic.register(area, ptag, rdma_write=True)
    source, received = await nic.register(outgoing, ptag), await nic.register(inbox, ptag)
    report = await nic.register(place, ptag)
    vi = await nic.create_vi(ptag)
    vi.post_receive(Descriptor(data=(report.segment(),)))
    for _ in range(2 * len(SIZES)):
        vi.post_receive(Descriptor(data=(received.segment(),)))
    await _connect(nic, vi, node, other, kind)
    _PLACE.pack_into(outgoing, 0, memory.address, memory.handle)
    vi.post_send(Descriptor(OP_SENDRECV, (source.segment(0, _PLACE.size),)))
    await vi.receive_queue.wait()
    target = Segment(*_PLACE.unpack_from(place))
    await vi.send_queue.wait()
    outgoing[:] = bytes([nic.number + 1]) * LARGEST
    for number, size in enumerate(SIZES):
        remote = Segment(target.address + number * LARGEST, target.handle)
        vi.post_send(Descriptor(OP_RDMAWRITE | IMMEDIATE, (source.segment(0, size),), remote, number))
        vi.post_send(Descriptor(OP_SENDRECV, (source.segment(0, size),)))
    steps = []
    for _ in range(2 * len(SIZES)):
        done = await vi.receive_queue.wait()
        steps.append(f"{done.length} bytes, status {done.status:#x}, immediate {done.immediate}")
    theirs = bytes([other + 1]) * LARGEST
    wrong = [(at, byte) for at, byte in enumerate(inbox) if byte != theirs[at]]
    assert not wrong, f"{kind}, node {other}: {steps}; wrong bytes: {len(wrong)}, the first ones {wrong[:3]}"
    assert all(area[number * LARGEST :][:size] == theirs[:size] for number, size in enumerate(SIZES))
    for _ in range(2 * len(SIZES)):
        await vi.send_queue.wait()
    await vi.disconnect()
    await vi.destroy()
    for first, view in ((memory, area), (source, outgoing), (received, inbox), (report, place)):
        await nic.deregister(first)
        nic.release(view)
    return steps


async def _connect(nic: ViaNic, vi: Vi, node: Node, other: int, kind: str) -> None:
    """Connect to another node, which also connects; of server and client, the server has the smaller number."""
    name = f"{kind} {min(nic.number, other)} {max(nic.number, other)}".encode()
    if kind == "peers":
        await vi.connect_peer(other, name)
    elif nic.number < other:
        await vi.accept(await nic.connect_wait(name))
    else:
        while vi.state is not ViState.CONNECTED:
            try:
                await vi.connect_request(other, name)
            except ViaError as error:
                if error.result is not Result.NO_MATCH:  # it does not wait yet
                    raise
                await node.sleep(MILLISECOND)
