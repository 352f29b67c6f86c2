"""A program of VIPL calls with the same outcome in every mode: connections of both kinds, rejections, a request that times
out, sends and RDMA writes."""

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
MAX_SIZE: Final = max(SIZES)
_ADDRESS: Final = struct.Struct("!QI")  # address and handle of memory that the peer may write


class VipConnections(Native[ViaNic]):
    """Every pair of nodes makes two connections, client-server and peer-to-peer. A node's result lists the outcome of each
    step in order."""

    protocol = "via"

    async def program(self, library: ViaNic, node: Node) -> list[str]:
        nic, history = library, list[str]()
        assert [nic.name_by_node(number) for number in range(nic.size)] == list(node.names)
        assert nic.number == nic.node_by_name(node.name)
        ptag = await nic.create_ptag()
        others = [number for number in range(nic.size) if number != nic.number]
        for peer in others:
            vi = await nic.create_vi(ptag)
            history.append(f"node {peer}: {await _reject(nic, vi, peer, node)}")
            await vi.destroy()
        for peer in others:
            for kind in ("server", "peers"):
                history += [f"node {peer}, {kind}: {step}" for step in await _transfer(nic, node, ptag, peer, kind)]
        unanswered = await nic.create_vi(ptag)
        try:
            await unanswered.connect_peer(others[0], b"unanswered %d" % nic.number, 20 * MILLISECOND)
        except ViaError as error:
            history.append(error.result.name)
        return history


async def _reject(nic: ViaNic, vi: Vi, peer: int, node: Node) -> str:
    """The node with the greater number repeats its request until the server rejects it. A NO_MATCH reply may be in flight
    when the server rejects a retransmission and ends; later requests find no server."""
    name = b"rejected %d %d" % (min(nic.number, peer), max(nic.number, peer))
    if nic.number < peer:
        request = await nic.connect_wait(name)
        await nic.reject(request)
        return f"rejected node {request.node}"
    await node.sleep(5 * MILLISECOND)
    for _ in range(500):
        try:
            await vi.connect_request(peer, name)
        except ViaError as error:
            if error.result is Result.REJECT:
                return "was rejected"
        await node.sleep(MILLISECOND)
    return "was rejected"


async def _transfer(nic: ViaNic, node: Node, ptag: int, peer: int, kind: str) -> list[str]:
    """Connect to a peer, exchange memory addresses, then alternate RDMA writes and sends. Both sides disconnect.

    The peer's address has a separate buffer, because its messages may arrive before this program continues."""
    area, outgoing, inbox = nic.allocate(MAX_SIZE * len(SIZES)), nic.allocate(MAX_SIZE), nic.allocate(MAX_SIZE)
    address_buffer = nic.allocate(_ADDRESS.size)
    memory = await nic.register(area, ptag, rdma_write=True)
    source, received = await nic.register(outgoing, ptag), await nic.register(inbox, ptag)
    report = await nic.register(address_buffer, ptag)
    vi = await nic.create_vi(ptag)
    vi.post_receive(Descriptor(data=(report.segment(),)))
    for _ in range(2 * len(SIZES)):
        vi.post_receive(Descriptor(data=(received.segment(),)))
    await _connect(nic, vi, node, peer, kind)
    _ADDRESS.pack_into(outgoing, 0, memory.address, memory.handle)
    vi.post_send(Descriptor(OP_SENDRECV, (source.segment(0, _ADDRESS.size),)))
    await vi.receive_queue.wait()
    target = Segment(*_ADDRESS.unpack_from(address_buffer))
    await vi.send_queue.wait()
    outgoing[:] = bytes([nic.number + 1]) * MAX_SIZE
    for number, size in enumerate(SIZES):
        remote = Segment(target.address + number * MAX_SIZE, target.handle)
        vi.post_send(Descriptor(OP_RDMAWRITE | IMMEDIATE, (source.segment(0, size),), remote, number))
        vi.post_send(Descriptor(OP_SENDRECV, (source.segment(0, size),)))
    steps = []
    for _ in range(2 * len(SIZES)):
        done = await vi.receive_queue.wait()
        steps.append(f"{done.length} bytes, status {done.status:#x}, immediate {done.immediate}")
    expected = bytes([peer + 1]) * MAX_SIZE
    wrong = [(offset, byte) for offset, byte in enumerate(inbox) if byte != expected[offset]]
    assert not wrong, f"{kind}, node {peer}: {steps}; wrong bytes: {len(wrong)}, the first ones {wrong[:3]}"
    assert all(area[number * MAX_SIZE :][:size] == expected[:size] for number, size in enumerate(SIZES))
    for _ in range(2 * len(SIZES)):
        await vi.send_queue.wait()
    await vi.disconnect()
    await vi.destroy()
    for first, view in ((memory, area), (source, outgoing), (received, inbox), (report, address_buffer)):
        await nic.deregister(first)
        nic.release(view)
    return steps


async def _connect(nic: ViaNic, vi: Vi, node: Node, peer: int, kind: str) -> None:
    """Connect to a peer that also connects; in client-server mode, the node with the smaller number is the server."""
    name = f"{kind} {min(nic.number, peer)} {max(nic.number, peer)}".encode()
    if kind == "peers":
        await vi.connect_peer(peer, name)
    elif nic.number < peer:
        await vi.accept(await nic.connect_wait(name))
    else:
        while vi.state is not ViState.CONNECTED:
            try:
                await vi.connect_request(peer, name)
            except ViaError as error:
                if error.result is not Result.NO_MATCH:  # the server is not waiting yet
                    raise
                await node.sleep(MILLISECOND)
