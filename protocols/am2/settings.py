"""Settings of AM-II. The default is the value in the sources, where these state one with certainty."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

MILLISECOND: Final = 1_000_000
SECOND: Final = 1_000 * MILLISECOND

MAX_CHANNELS: Final = 256
MAX_SEQUENCES: Final = 1 << 16
MAX_CREDITS: Final = 16
MIN_MEDIUM: Final = 512
"""Minimum of `Settings.medium`: bytes of data that AM-2 guarantees for a medium message."""
MAX_PACKET: Final = 8192
"""Maximum bytes of data in a packet."""
MAX_HOSTS: Final = 64
"""Maximum host processes that share a NIC."""
_MIN_NUMBERS_PER_HOST: Final = 4096


@dataclass(frozen=True, slots=True)
class Settings:
    """Settings of AM-II.

    Transport. channels: logical channels to each other NIC; "many" in the paper, 32 is ours. sequences: number of
    sequence numbers of a channel. 2 is the paper's alternating bit, which is enough if the network keeps frames in
    order. If links reorder frames, an old copy could be taken for a new packet; then 65536 replaces 2. scan:
    nanoseconds between two scans for unanswered packets (ours). timeout: nanoseconds without an answer after which a
    packet is resent (ours), doubled with each resend up to longest_timeout; more if round trips are long (`transport`).
    retries: resends before the peer is unreachable (ours: 40 resends at intervals of at most 160 ms take six seconds,
    and the paper has "several seconds"; its count is 255, from memory). detour: nanoseconds for which messages wait for
    a new route after the last one was lost (ours). refused: nanoseconds before a packet refused for a temporary reason
    is resent (ours). congestion: number of refusals after which a message is returned to its sender; 0, ours:
    unlimited. keepalive: nanoseconds without a reply after which a peer that has accepted requests is sent a keepalive
    (ours), doubled with each keepalive; 0: none is sent.

    Endpoints. credits: K_user, maximum requests of an endpoint to each other endpoint without a reply (4: the product
    of bandwidth and round trip, in short messages). frames: endpoint frames in the NIC (the paper's seven). attempts:
    the exponent k of "2^k attempts" to send from one endpoint before the next one's turn (8 in the paper, from memory).
    attempt: nanoseconds of an attempt. The NIC loiters with an endpoint for 2^k attempts, even if the endpoint has
    nothing to send (ours: with the default k a turn takes 6.4 us, as long as a host of the paper takes to handle a
    message and write the next one, o_s + o_r); 0: it does not loiter. stay: minimum nanoseconds for which an endpoint
    keeps its frame, varied up to twice this (ours: longer than a refused packet waits, so that its resend finds the
    endpoint). replacement: which endpoint gives up its frame: the least recently used one, or a random one, in either
    case an idle one if there is any (both ours). endpoints: maximum endpoints of a host process; a node has one process
    unless several share its NIC. handlers, translations: size of an endpoint's table of handlers, and of its
    translation table (256: AM-2's minimum). mappings: maximum mapped regions of host memory; regions of resident
    endpoints count, but stay mapped above the maximum. Two endpoints of one node that communicate with each other must
    be resident together, which needs two frames.

    Messages. medium: maximum bytes of a medium message's data, 512 or more in AM-2; reduced if the MTU requires it.
    packet: bytes of a bulk message in one packet (8 KB in the paper); reduced if the MTU requires it. route: bytes of
    source route for which every packet leaves room, on source-routed networks.

    Features that GAM lacked; each can be switched off. reliable: acknowledgements and retransmission. guarded: the NIC
    checks the tags of messages. virtual: endpoints share frames by paging; otherwise there are only as many endpoints
    as frames.
    """

    channels: int = 32
    sequences: int = 2
    scan: int = 1 * MILLISECOND
    timeout: int = 5 * MILLISECOND
    longest_timeout: int = 160 * MILLISECOND
    retries: int = 40
    detour: int = 2 * SECOND
    refused: int = 1 * MILLISECOND
    congestion: int = 0
    keepalive: int = 5 * SECOND
    credits: int = 4
    frames: int = 7
    attempts: int = 8
    attempt: int = 25
    stay: int = 3 * MILLISECOND
    replacement: Literal["least recently used", "random"] = "least recently used"
    endpoints: int = 4096
    handlers: int = 256
    translations: int = 256
    mappings: int = 1024
    medium: int = MAX_PACKET
    packet: int = MAX_PACKET
    route: int = 64
    reliable: bool = True
    guarded: bool = True
    virtual: bool = True

    @property
    def numbers_per_host(self) -> int:
        """Size of a host process's range of endpoint numbers. The range of slot n begins at n times this size."""
        return max(self.endpoints, _MIN_NUMBERS_PER_HOST)

    @property
    def max_hosts(self) -> int:
        """Maximum number of host processes that share a NIC, as the 16 bits of endpoint numbers permit."""
        return min((1 << 16) // self.numbers_per_host, MAX_HOSTS)

    def __post_init__(self) -> None:
        if not 1 <= self.channels <= MAX_CHANNELS:
            raise ValueError(f"channels = {self.channels}: 1 to {MAX_CHANNELS}")
        if not 2 <= self.sequences <= MAX_SEQUENCES or self.sequences & self.sequences - 1:
            raise ValueError(f"sequences = {self.sequences}: a power of two from 2 to {MAX_SEQUENCES}")
        for name in ("scan", "refused"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} = {getattr(self, name)}: 1 ns or more")
        if not 0 < self.timeout <= self.longest_timeout:
            raise ValueError(f"timeout = {self.timeout}: 1 to {self.longest_timeout} ns (longest_timeout)")
        if self.retries < 1:
            raise ValueError(f"retries = {self.retries}: 1 or more")
        if not 1 <= self.credits <= MAX_CREDITS:
            raise ValueError(f"credits = {self.credits}: 1 to {MAX_CREDITS}, the entries of a ring")
        for name in ("frames", "endpoints", "translations", "mappings"):
            if not 1 <= getattr(self, name) <= 1 << 16:
                raise ValueError(f"{name} = {getattr(self, name)}: 1 to 65536")
        if not 1 <= self.handlers <= 256:
            raise ValueError(f"handlers = {self.handlers}: 1 to 256")
        if not 0 <= self.attempts <= 30:
            raise ValueError(f"attempts = {self.attempts}: 0 to 30 (an exponent of 2)")
        for name in ("detour", "attempt", "stay", "congestion", "keepalive"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} = {getattr(self, name)}: 0 or more")
        for name in ("medium", "packet"):
            if not MIN_MEDIUM <= getattr(self, name) <= MAX_PACKET:
                raise ValueError(f"{name} = {getattr(self, name)}: {MIN_MEDIUM} to {MAX_PACKET} bytes")
        if not 0 <= self.route <= 255:
            raise ValueError(f"route = {self.route}: 0 to 255 bytes")
