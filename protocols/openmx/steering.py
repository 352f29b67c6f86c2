"""Steering: the NIC's hash of frames to receive queues, by destination endpoint (the paper's section 3.1).

A frame's type and the endpoint stand at fixed places. A pull reply has no endpoint; what comes nearest is its magic, the
endpoint's index combined with a constant. As the firmware of Myri-10G was shipped (`myri10ge_queue`), it takes the lowest
byte of the magic as it is, which is the index with one bit changed: with 3 queues, for example, pull replies come to other
queues than the rest. `endpoint_queue` takes the constant out.
"""

from __future__ import annotations

from typing import Final

from protocols.core.firmware import Buffer
from protocols.core.protocol import Hash, Instruction
from protocols.openmx.codec import TYPE_PULL_REPLY
from protocols.openmx.mx_names import PULL_MAGIC

_TYPE_AT: Final = 16
_ENDPOINT_AT: Final = 17
_MAGIC_AT: Final = 31
"""The lowest byte of a pull reply's magic."""


def endpoint_queue(frame: Buffer, queues: int) -> int:
    """Return the queue of a frame: the same for all frames to an endpoint."""
    return _endpoint(frame, PULL_MAGIC & 0xFF) % queues


def myri10ge_queue(frame: Buffer, queues: int) -> int:
    """Return the queue that the firmware chooses as it was shipped."""
    return _endpoint(frame, 0) % queues


_ETHERNET: Final = 14
_LOAD_BYTE, _JUMP_IF_EQUAL, _XOR, _RETURN = 0x30, 0x15, 0xA4, 0x16


def _program(constant: int) -> tuple[Instruction, ...]:
    """Return the hash as classic BPF. constant: taken out of a pull reply's magic."""
    return (
        (_LOAD_BYTE, 0, 0, _TYPE_AT - _ETHERNET),
        (_JUMP_IF_EQUAL, 2, 0, TYPE_PULL_REPLY),
        (_LOAD_BYTE, 0, 0, _ENDPOINT_AT - _ETHERNET),
        (_RETURN, 0, 0, 0),
        (_LOAD_BYTE, 0, 0, _MAGIC_AT - _ETHERNET),
        (_XOR, 0, 0, constant),
        (_RETURN, 0, 0, 0),
    )


HASHES: Final = {
    "endpoint": Hash(endpoint_queue, _program(PULL_MAGIC & 0xFF)),
    "myri10ge": Hash(myri10ge_queue, _program(0)),
}


def _endpoint(frame: Buffer, constant: int) -> int:
    if len(frame) <= _MAGIC_AT:
        return 0
    if frame[_TYPE_AT] == TYPE_PULL_REPLY:
        return frame[_MAGIC_AT] ^ constant
    return frame[_ENDPOINT_AT]
