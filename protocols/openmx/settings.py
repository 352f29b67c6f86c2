"""Settings of Open-MX's driver and library."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from protocols.openmx.endpoint_memory import PULLS
from protocols.openmx.mx_names import MAX_UNACKED, SEQNUM_MASK

SECOND: Final = 1_000_000_000
MAX_TIME: Final = 1 << 62
MIN_ENTRIES: Final = 32
MAX_ENTRIES: Final = 16_384


@dataclass(frozen=True, slots=True)
class Settings:
    """Settings of Open-MX; the defaults are the source's (`omx_lib.h`, `omx_pull.c`) unless they are called ours. Raises
    ValueError for an invalid value.

    tick: nanoseconds of the library's clock; an acknowledgement is delayed by one at most. resend: ticks after which an
    unacknowledged message is sent again. resends: times that a message is sent again before its peer counts as unreachable;
    0: for ever. acknowledge: messages received after which they are acknowledged at once. zombies: sends that may complete
    before their message is acknowledged. unacked: frames of unacknowledged messages to one endpoint, above which more are
    held back (ours: half of its receive ring; the source holds them back from 8,191 messages on). pulls: of one endpoint
    that are under way at once (ours: each has 128 replies under way).
    pull_timeout: nanoseconds without progress after which a pull asks again. offload: bytes from which on the data of a
    pull reply is copied by the copy engine (I/OAT); 0: the core copies. rendezvous: bytes above which a message is pulled.
    shared_rendezvous: the same between endpoints of one node. entries: of an endpoint's receive ring.
    migrate: 1 if a program moves to the core that its endpoint's frames interrupt (the paper's section 3.2), otherwise 0.
    first_seqnum: number of a session's first message. (The source begins with others after a disconnect.)
    """

    tick: int = SECOND // 64
    resend: int = 32
    resends: int = 1000
    acknowledge: int = 4
    zombies: int = 512
    unacked: int = 512
    pulls: int = 8
    pull_timeout: int = SECOND
    offload: int = 0
    rendezvous: int = 32_768
    shared_rendezvous: int = 4_096
    entries: int = 1024
    migrate: int = 1
    first_seqnum: int = 0

    def __post_init__(self) -> None:
        for name in self.__slots__:
            value = getattr(self, name)
            if type(value) is not int:
                raise ValueError(f"{name} must be a whole number, got {value!r}")
        limits = {
            "tick": (1000, MAX_TIME), "resend": (1, 1 << 20), "resends": (0, 1 << 30), "acknowledge": (1, 128),
            "zombies": (0, 1 << 20), "unacked": (1, MAX_UNACKED), "pulls": (1, PULLS), "pull_timeout": (1, MAX_TIME),
            "offload": (0, 1 << 30), "rendezvous": (128, 32_768), "shared_rendezvous": (128, 32_768),
            "entries": (MIN_ENTRIES, MAX_ENTRIES), "migrate": (0, 1),
            "first_seqnum": (0, SEQNUM_MASK),
        }  # fmt: skip
        for name, (least, most) in limits.items():
            value = getattr(self, name)
            if not least <= value <= most:
                raise ValueError(f"{name} must be {least} to {most}, got {value}")
