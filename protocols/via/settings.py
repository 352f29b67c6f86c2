"""Settings of a VIA provider."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from protocols.via.vipl_names import Reliability

MILLISECOND: Final = 1_000_000
MAX_SLOTS: Final = 65_535
MAX_TIME: Final = 1 << 62


@dataclass(frozen=True, slots=True)
class Settings:
    """Settings of a VIA provider. The specification has none of them. Raises ValueError for an invalid value, whose text is
    "NAME = VALUE: ALLOWED".

    reliability: highest reliability level of the provider: 4 (reliable reception), 2 (reliable delivery) or 1
    (unreliable, as M-VIA). window: maximum unacknowledged frames of a connection. acknowledge: frames after which a
    receiver acknowledges; the last frame of a message is acknowledged at once. timeout: nanoseconds after which
    unacknowledged frames and connection requests are resent, doubled each time up to longest_timeout. give_up:
    nanoseconds without an acknowledgement after which a connection is lost; 0: never. slots: descriptors and commands
    in the NIC's memory. max_transfer: maximum bytes of a message. requests: maximum unanswered connection requests.
    rdma_read: 1 if the provider supports RDMA Read, at the reliable levels only, otherwise 0.

    Settings of MPI (`protocols.mpi.via`): area: bytes of a rank's RDMA area for one peer. buffer: bytes of a send
    buffer, the maximum part of a message that is copied and written at once; at most a quarter of the area. depth:
    receive descriptors of a VI; fewer if there are not enough `slots`. register_from: minimum bytes of a message that
    is registered on the fly instead of copied; 0: no message is. connect_all: 1 if a rank connects to all ranks before
    its program starts, 0 if it connects to a rank with the first message. connect_timeout: nanoseconds after which such
    a connection fails if the peer does not accept it, or accepts it and does not send its first message; 0: never.
    """

    reliability: int = 4
    window: int = 32
    acknowledge: int = 8
    timeout: int = 5 * MILLISECOND
    longest_timeout: int = 160 * MILLISECOND
    give_up: int = 0
    slots: int = 2048
    max_transfer: int = 1 << 24
    requests: int = 1024
    rdma_read: int = 1
    area: int = 32_768
    buffer: int = 8_192
    depth: int = 32
    register_from: int = 0
    connect_all: int = 0
    connect_timeout: int = 0

    def __post_init__(self) -> None:
        for name in self.__slots__:
            value = getattr(self, name)
            if type(value) is not int:
                raise ValueError(f"{name} = {value!r}: a whole number")
        levels = [int(level) for level in Reliability]
        if self.reliability not in levels:
            raise ValueError(f"reliability = {self.reliability}: one of {levels}")
        limits = {
            "window": (1, 1 << 15), "acknowledge": (1, self.window), "longest_timeout": (self.timeout, MAX_TIME),
            "timeout": (1, MAX_TIME), "give_up": (0, MAX_TIME), "slots": (8, MAX_SLOTS),
            "max_transfer": (1, (1 << 31) - 1), "requests": (1, 1 << 20), "rdma_read": (0, 1),
            "area": (256, 1 << 30), "buffer": (64, self.area // 4), "depth": (8, 1024),
            "register_from": (0, (1 << 31) - 1), "connect_all": (0, 1),
            "connect_timeout": (0, MAX_TIME),
        }  # fmt: skip
        for name, (minimum, maximum) in limits.items():
            value = getattr(self, name)
            if not minimum <= value <= maximum:
                raise ValueError(f"{name} = {value}: {minimum} to {maximum}")
