"""One direction of a link of a Myrinet network: what becomes of its frames is decided as on every link; when they pass, the
network decides."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final, Literal

from testbed.errors import UnsupportedError
from testbed.spec.layout import Impairment
from testbed.spec.myrinet import WHY, meaningless
from testbed.wire.direction import Direction
from testbed.wire.fates import Record
from testbed.wire.fields import ETHERNET_HEADER, Fields
from testbed.wire.flows import Classifier
from testbed.wire.line import NOTHING
from testbed.wire.myrinet.settings import USUAL, Settings
from testbed.wire.myrinet.worm import Hop, Worm, pass_in
from testbed.wire.rules import RuleSet

if TYPE_CHECKING:
    from testbed.wire.delivery_trace import DeliveryTrace
    from testbed.wire.myrinet.switch import Switch

NIC: Final = 0
"""Who asks for a channel that leaves from a NIC; a switch's inputs have their port numbers, from 1 on."""
ASIDE: Final = -1
"""Who asks for frames that a rule has delayed or doubled."""


class Channel(Direction):
    """A channel has no queue: while one frame has it, others wait where they are. on_space: called with the time when a NIC
    that was refused may offer its frame again. receive: called with the time and each frame that comes to a NIC. A rule that
    delays a frame, or doubles it, takes it out of the network, and puts it back at the channel's beginning later; one that
    reorders does nothing, as there is no frame that could be overtaken."""

    __slots__ = (
        "_accepted", "_settings", "aside", "asking", "chosen", "free", "inside", "is_cut", "is_granted", "lost", "port",
        "put_aside", "receive", "speed", "switch", "under_way", "window",
    )  # fmt: skip

    def __init__(
        self,
        link: str,
        direction: Literal["forward", "backward"],
        impairment: Impairment = NOTHING,
        *,
        seed: int,
        now: int = 0,
        settings: Settings = USUAL,
        rules: RuleSet | None = None,
        fields: Fields | None = None,
        classifier: Classifier | None = None,
        files: Mapping[str, str] | None = None,
        log: Callable[[Record], object] | None = None,
    ) -> None:
        """As for `Direction`. Raises UnsupportedError for impairments that no such link can have."""
        self._settings = settings
        self._accepted: bytes | None = None
        self.put_aside: list[tuple[int, bytes]] = []
        """What a rule has taken out of the network just now: until when, and the frame."""
        super().__init__(
            link,
            direction,
            impairment,
            seed=seed,
            now=now,
            rules=rules,
            fields=fields,
            classifier=classifier,
            files=files,
            log=log,
        )
        self.receive: Callable[[int, bytes], object] = ignore
        self.switch: Switch | None = None
        """Where it ends, at that port of it; None: at a NIC."""
        self.port = 0
        self.is_cut = False
        self.lost = 0
        """Frames that entered while it was cut."""
        self.free = 0
        """From when on nobody has it; UNKNOWN: that is not known yet."""
        self.asking: dict[int, Worm | None] = {}
        """Who waits for it, by the input; a NIC has no worm yet."""
        self.is_granted = False
        """A NIC is being told that it may have it."""
        self.aside: list[tuple[int, int, bytes]] = []
        """A heap of what rules have taken out of the network: until when, a number, the frame."""
        self.chosen = ASIDE
        """Which of those who asked has had it last."""
        self.inside: deque[Hop] = deque()
        """Frames that are on it or in the input at its end, in order."""
        self.under_way = 0
        """Frames whose head has not come through yet, or, at a NIC, whose end has not."""

    @property
    def held(self) -> int:
        return self.under_way + len(self.aside)

    def take(self, now: int, frame: bytes) -> bytes | None:
        """A frame enters the channel, which is free: as it is from here on, or None if it does not go on."""
        if self.is_cut:
            self.lost += 1
            return None
        injected = self._injected
        if self._uneventful and (injected is None or injected.version == self._version):
            self._counters.offered += 1  # flows count from when something can happen to their frames
            return frame
        self._accepted = None
        self.offer(now, frame)
        return self._accepted

    def hop(self, worm: Worm, frame: bytes, now: int) -> Hop:
        """The frame's way over it, from now on."""
        window = self.window if self.switch is not None else 0
        return Hop(worm, self, frame, max(len(frame) - ETHERNET_HEADER, 1), now, self.speed, self._delay, window)

    def end_at(self, switch: Switch, port: int) -> None:
        """It leads to a switch."""
        self.switch = switch
        self.port = port

    def came(self, hop: Hop) -> None:
        """A frame has come through."""
        self.under_way -= 1
        counters = self._counters
        counters.delivered += 1
        counters.delivered_bytes += len(hop.frame)

    # What `Direction` calls when it has decided.

    def _put(self, now: int, frame: bytes, delay: int) -> bool:  # noqa: ARG002
        self._accepted = frame
        return True

    def _send(self, now: int, frame: bytes, delay: int, skip: bool, late: int) -> None:  # noqa: ARG002
        if late or self._accepted is not None:
            self.put_aside.append((now + late, frame))
        else:
            self._accepted = frame

    def _set(self, now: int, impairment: Impairment, files: Mapping[str, str], restart: bool) -> None:
        if found := meaningless(impairment):
            raise UnsupportedError(f"{self._link}: {WHY}: it can have no {', '.join(found)}")
        super()._set(now, impairment, files, restart)

    def _lay(self, now: int, impairment: Impairment, trace: DeliveryTrace | None, spread: int) -> None:
        super()._lay(now, impairment, trace, spread)
        settings = self._settings
        self.speed = speed = impairment.rate or settings.rate
        """bit/s."""
        self.window = max(settings.slack, pass_in(settings.hop, speed)) + pass_in(2 * self._delay, speed)
        """Bytes that pass before the first has left the input at the other end."""


def ignore(now: int, frame: bytes) -> None:
    """Where nobody listens."""
