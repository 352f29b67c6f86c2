"""What can be set of AM-II. What the sources say is the default where they say something."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

MILLISECOND: Final = 1_000_000
SECOND: Final = 1_000 * MILLISECOND

MOST_CHANNELS: Final = 256
MOST_SEQUENCES: Final = 1 << 16
MOST_CREDITS: Final = 16
LEAST_MEDIUM: Final = 512
MOST_PACKET: Final = 8192
MOST_HOSTS: Final = 64
_NUMBERS: Final = 4096


@dataclass(frozen=True, slots=True)
class Settings:
    """Transport. channels: logical channels to each other NIC; "many" in the paper, 32 is ours. sequences: numbers that a
    channel's packets have in turn: 2 is the paper's alternating bit, enough where the network keeps frames in order; on
    links that reorder an old copy could be taken for a new packet, and 65536 is right, and is taken where 2 is set. scan:
    nanoseconds between two looks at what has not been answered (ours). timeout: nanoseconds without an answer after which
    a packet is sent again (ours), doubled each time up to longest_timeout; more where round trips take long (`channels`).
    retries: how often before the peer is unreachable (the digest has 255 from memory, "several seconds" from the paper:
    40 of at most 160 ms are six). detour: nanoseconds for which messages wait for a route where the last one has gone
    (ours). refused: nanoseconds before a packet that was refused for a reason that passes is sent
    again (ours). congestion: how often in a row it may be refused before it comes back to its sender; 0, ours: for ever.

    Endpoints. credits: K_user, requests that an endpoint may have without a reply at each other one (4: the bandwidth
    times the round trip in short messages). frames: endpoint frames in the NIC (the paper's seven). attempts: the
    exponent k of "2^k attempts" to send from one endpoint before it is the next one's turn (8 is from memory in the
    digest). attempt: nanoseconds of one that finds nothing, while the NIC loiters with an endpoint; 0: it does not
    loiter. stay: nanoseconds that an endpoint keeps its frame at least, up to twice as long (ours: longer than a packet
    that was refused waits, so that it is taken when it comes again). replacement: which of the endpoints that are idle,
    or else of all, gives up its frame: the least recently used, or any, which is another one each time (both ours).
    endpoints: of a host process at most, of which a node has one unless several share its NIC. handlers, translations: of
    an endpoint (256: AM-2's minimum). mappings: regions of host memory that the NIC can reach at once, beside those that
    resident endpoints need. Two endpoints of one node that talk to each other must be in frames at the same time: with one
    frame they never are.

    Messages. medium: bytes of data that one has at most, 512 being AM-2's minimum; less where the MTU asks for it.
    packet: bytes of a bulk message in one packet, less where the MTU asks for it (8 KB in the paper). route: bytes of
    source route for which every packet leaves room, on networks that have them.

    What GAM did not have, each by itself: reliable, acknowledgements and retransmission; guarded, tags and what is
    wrong with a message are looked at by the NIC; virtual, endpoints give up their frames for others: without it there
    are as many as frames."""

    channels: int = 32
    sequences: int = 2
    scan: int = 1 * MILLISECOND
    timeout: int = 5 * MILLISECOND
    longest_timeout: int = 160 * MILLISECOND
    retries: int = 40
    detour: int = 2 * SECOND
    refused: int = 1 * MILLISECOND
    congestion: int = 0
    credits: int = 4
    frames: int = 7
    attempts: int = 8
    attempt: int = 0
    stay: int = 3 * MILLISECOND
    replacement: Literal["least recently used", "random"] = "least recently used"
    endpoints: int = 4096
    handlers: int = 256
    translations: int = 256
    mappings: int = 1024
    medium: int = MOST_PACKET
    packet: int = MOST_PACKET
    route: int = 64
    reliable: bool = True
    guarded: bool = True
    virtual: bool = True

    @property
    def numbers(self) -> int:
        """Endpoints' numbers that a host process has for itself, from its place times as many on."""
        return max(self.endpoints, _NUMBERS)

    @property
    def hosts(self) -> int:
        """Host processes that can share a NIC: endpoints' numbers have 16 bits."""
        return min((1 << 16) // self.numbers, MOST_HOSTS)

    def __post_init__(self) -> None:
        if not 1 <= self.channels <= MOST_CHANNELS:
            raise ValueError(f"{self.channels} channels: 1 to {MOST_CHANNELS}")
        if not 2 <= self.sequences <= MOST_SEQUENCES or self.sequences & self.sequences - 1:
            raise ValueError(f"{self.sequences} sequence numbers: a power of two from 2 to {MOST_SEQUENCES}")
        if self.scan < 1 or self.refused < 1:
            raise ValueError(f"scans {self.scan} ns apart, {self.refused} ns after a refusal: 1 or more")
        if not 0 < self.timeout <= self.longest_timeout:
            raise ValueError(f"a time-out of {self.timeout} ns: above 0, and at most {self.longest_timeout} ns")
        if self.retries < 1 or self.detour < 0:
            raise ValueError(f"{self.retries} retries, a detour of {self.detour} ns: 1 or more, 0 or more")
        if not 1 <= self.credits <= MOST_CREDITS:
            raise ValueError(f"{self.credits} credits: 1 to {MOST_CREDITS}, the entries of a ring")
        for name in ("frames", "endpoints", "handlers", "translations", "mappings"):
            if not 1 <= getattr(self, name) <= 1 << 16:
                raise ValueError(f"{getattr(self, name)} {name}: 1 to 65536")
        if self.handlers > 256:
            raise ValueError(f"{self.handlers} handlers: at most 256")
        if not 0 <= self.attempts <= 30:
            raise ValueError(f"2 to the {self.attempts} attempts: 0 to 30")
        if self.attempt < 0 or self.stay < 0 or self.congestion < 0:
            raise ValueError(f"attempt {self.attempt}, stay {self.stay}, congestion {self.congestion}: 0 or more")
        for name in ("medium", "packet"):
            if not LEAST_MEDIUM <= getattr(self, name) <= MOST_PACKET:
                raise ValueError(f"{name} of {getattr(self, name)} bytes: {LEAST_MEDIUM} to {MOST_PACKET}")
        if not 0 <= self.route <= 255:
            raise ValueError(f"routes of {self.route} bytes: 0 to 255")
