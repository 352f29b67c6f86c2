"""Postcard, but for letters with the tags below."""

from __future__ import annotations

from dataclasses import replace

from postcard import protocol as postcard
from postcard.frames import HEAD, LETTER

from protocols.core.firmware import Adapter, Agent, Nic

RING_RAISES, RECEIVE_RAISES, TICK_RAISES, DEADLINE_STAYS, FRAME_TOO_LONG, LIBRARY_RAISES = range(101, 107)


ETHERTYPE = 0x88B8
"""Another one than postcard's: two packages cannot have the same."""


class Firmware(postcard.Firmware):
    """wrong: the tag of the letter that came last."""

    ethertype = ETHERTYPE

    wrong = 0
    _since: int | None = None

    @property
    def deadline(self) -> int | None:
        return super().deadline if self._since is None else self._since

    def on_doorbell(self, now: int, index: int) -> None:
        tag = self.letters[index][2]
        if tag == RING_RAISES:
            raise KeyError(f"no letter {index}")
        if tag == FRAME_TOO_LONG:
            self._nic.send(bytes(self._adapter.mtu + 15))
        super().on_doorbell(now, index)

    def receive(self, now: int, frame: bytes) -> None:
        _, _, _, kind, _, _, _, tag, _ = HEAD.unpack_from(frame)
        if kind == LETTER and frame[:6] == self._adapter.address:
            self.wrong = tag
            if tag == RECEIVE_RAISES:
                raise IndexError("no place for a letter")
            if tag in (TICK_RAISES, DEADLINE_STAYS):
                self._since = now
                return
        super().receive(now, frame)

    def on_timer(self, now: int) -> None:
        if self.wrong == TICK_RAISES:
            raise ZeroDivisionError("no time")
        super().on_timer(now)


class Host(postcard.Host):
    def completed(self, index: int) -> None:
        if index == postcard.INBOX and self._firmware.inbox[0][2] == LIBRARY_RAISES:
            raise ValueError("no such letter")
        super().completed(index)


def plug(adapter: Adapter, nic: Nic) -> Agent:
    firmware = Firmware(adapter, nic)
    return Agent(firmware, Host(adapter, nic, firmware))


PROTOCOL = replace(postcard.PROTOCOL, plug=plug, ethertype=ETHERTYPE)
