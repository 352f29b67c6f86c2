"""Steering: the NIC's hash of frames to receive queues, by destination endpoint (the paper's section 3.1).

A frame's type and endpoint are at fixed offsets. A pull reply has no endpoint, but a magic: the XOR of the endpoint's index
and a constant. Myri-10G's firmware as shipped (`myri10ge_queue`) hashes the lowest byte of the magic, which is the index
with one bit changed: with 3 queues, for example, pull replies go to other queues than the endpoint's other frames.
`endpoint_queue` removes the constant first.
"""

from __future__ import annotations

from typing import Final

from protocols.core.firmware import Buffer
from protocols.core.protocol import Hash, Instruction
from protocols.openmx.codec import TYPE_PULL_REPLY
from protocols.openmx.mx_names import PULL_MAGIC

_TYPE_OFFSET: Final = 16
_ENDPOINT_OFFSET: Final = 17
_MAGIC_OFFSET: Final = 31
"""The lowest byte of a pull reply's magic."""


def endpoint_queue(frame: Buffer, queues: int) -> int:
    """Return the queue of a frame; all frames to an endpoint have one queue."""
    return _endpoint(frame, PULL_MAGIC & 0xFF) % queues


def myri10ge_queue(frame: Buffer, queues: int) -> int:
    """Return the queue that Myri-10G's firmware as shipped selects for a frame."""
    return _endpoint(frame, 0) % queues


_ETHERNET_HEADER: Final = 14  # bytes; the program's offsets begin after it
_LOAD_BYTE, _JUMP_IF_EQUAL, _XOR, _RETURN = 0x30, 0x15, 0xA4, 0x16


def _program(constant: int) -> tuple[Instruction, ...]:
    """Return the hash as classic BPF. constant: XORed with the lowest byte of a pull reply's magic."""
    return (
        (_LOAD_BYTE, 0, 0, _TYPE_OFFSET - _ETHERNET_HEADER),
        (_JUMP_IF_EQUAL, 2, 0, TYPE_PULL_REPLY),
        (_LOAD_BYTE, 0, 0, _ENDPOINT_OFFSET - _ETHERNET_HEADER),
        (_RETURN, 0, 0, 0),
        (_LOAD_BYTE, 0, 0, _MAGIC_OFFSET - _ETHERNET_HEADER),
        (_XOR, 0, 0, constant),
        (_RETURN, 0, 0, 0),
    )


HASHES: Final = {
    "endpoint": Hash(endpoint_queue, _program(PULL_MAGIC & 0xFF)),
    "myri10ge": Hash(myri10ge_queue, _program(0)),
}


def _endpoint(frame: Buffer, constant: int) -> int:
    if len(frame) <= _MAGIC_OFFSET:
        return 0
    if frame[_TYPE_OFFSET] == TYPE_PULL_REPLY:
        return frame[_MAGIC_OFFSET] ^ constant
    return frame[_ENDPOINT_OFFSET]
