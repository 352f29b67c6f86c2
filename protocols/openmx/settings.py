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
    """Settings of Open-MX. The defaults are those of Open-MX's sources (`omx_lib.h`, `omx_pull.c`), except where marked
    as ours. Raises ValueError for an invalid value, whose text is "NAME = VALUE: ALLOWED".

    tick: period of the library's clock in nanoseconds, and the maximum delay of an acknowledgement. resend: ticks after
    which an unacknowledged message is resent. resends: maximum retransmissions of a message, a connection request or a
    pull's requests before the partner is unreachable; 0: no limit. acknowledge: received messages and fragments after
    which an acknowledgement is sent at once. zombies: maximum sends that complete before their message is acknowledged.
    unacked: maximum frames of unacknowledged messages to one endpoint (ours: half of the default ring, whatever
    `entries` is; Open-MX's limit is 8,191 messages). pulls: maximum pulls of one endpoint in progress (ours; each has
    128 replies in flight). pull_timeout: nanoseconds without a complete first block after which a pull requests its
    missing frames again. offload: minimum bytes of a pull reply, or of a message on the same node, that the copy engine
    (I/OAT) copies; 0: the core copies all. rendezvous: maximum bytes of an eager message; longer messages are pulled.
    shared_rendezvous: as rendezvous, between endpoints of one node. entries: entries of an endpoint's receive ring.
    migrate: 1 if a program moves to the core that its endpoint's frames interrupt (the paper's section 3.2), otherwise
    0. first_seqnum: number of a session's first message (Open-MX uses another number after a disconnect).
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
                raise ValueError(f"{name} = {value!r}: a whole number")
        limits = {
            "tick": (1000, MAX_TIME), "resend": (1, 1 << 20), "resends": (0, 1 << 30), "acknowledge": (1, 128),
            "zombies": (0, 1 << 20), "unacked": (1, MAX_UNACKED), "pulls": (1, PULLS), "pull_timeout": (1, MAX_TIME),
            "offload": (0, 1 << 30), "rendezvous": (128, 32_768), "shared_rendezvous": (128, 32_768),
            "entries": (MIN_ENTRIES, MAX_ENTRIES), "migrate": (0, 1),
            "first_seqnum": (0, SEQNUM_MASK),
        }  # fmt: skip
        for name, (minimum, maximum) in limits.items():
            value = getattr(self, name)
            if not minimum <= value <= maximum:
                raise ValueError(f"{name} = {value}: {minimum} to {maximum}")
