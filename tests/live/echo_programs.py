"""Host programs of the echo protocol: request and reply, wait forever, or end at once."""

from __future__ import annotations

import socket

from testbed.runtime.nodes.run_orders import ProgramNode
from tests.live.echo_protocol import EchoEndpoint

TIMEOUT = 20.0  # s


async def ping(endpoint: EchoEndpoint, node: ProgramNode, peer: str = "n2", times: int = 20) -> list[bytes]:
    replies = []
    for number in range(times):
        buffer = bytearray(8)
        reply = endpoint.receive(buffer)
        await endpoint.send(node.numbers[peer], number.to_bytes(4, "big"))
        _, length = await reply
        replies.append(bytes(buffer[:length]))
    return replies


async def pong(endpoint: EchoEndpoint, node: ProgramNode, times: int = 20) -> str:
    for _ in range(times):
        buffer = bytearray(8)
        sender, length = await endpoint.receive(buffer)
        await endpoint.send(sender, bytes(buffer[:length])[::-1])
    return f"{node.name} in {socket.gethostname()}"


async def idle(_endpoint: EchoEndpoint, node: ProgramNode) -> int:
    return node.number


async def wait_forever(endpoint: EchoEndpoint, _node: ProgramNode) -> None:
    await endpoint.receive(bytearray(8))
