"""Postcard without a registration, except for letters with the tags below."""

from __future__ import annotations

from dataclasses import replace

from postcard import protocol as postcard
from postcard.codec import KIND_CARD, unpack_frame
from postcard.descriptors import SENDS, Descriptors
from postcard.firmware import Firmware as PostcardFirmware
from postcard.host import Host as PostcardHost
from postcard.settings import Settings

from protocols.core.firmware import Adapter, Agent, Nic
from protocols.core.memory import HostMemory

RING_RAISES, RECEIVE_RAISES, TICK_RAISES, DEADLINE_STAYS, FRAME_TOO_LONG, LIBRARY_RAISES = range(101, 107)


class Firmware(PostcardFirmware):
    """wrong: the tag of the letter that came last."""

    wrong = 0
    _since: int | None = None

    @property
    def deadline(self) -> int | None:
        return super().deadline if self._since is None else self._since

    def on_doorbell(self, now: int, index: int) -> None:
        tag = self._descriptors.read(index).tag if index < SENDS else 0
        if tag == RING_RAISES:
            raise KeyError(f"no letter {index}")
        if tag == FRAME_TOO_LONG:
            self._nic.send(bytes(self._adapter.mtu + 15))
        super().on_doorbell(now, index)

    def receive(self, now: int, frame: bytes) -> None:
        destination, _, kind, _, _, _, _, _, tag, _ = unpack_frame(frame)
        if kind == KIND_CARD and destination == self._adapter.address:
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


class Host(PostcardHost):
    def on_completion(self, index: int) -> None:
        if index >= SENDS and self._descriptors.read(index).tag == LIBRARY_RAISES:
            raise ValueError("no such letter")
        super().on_completion(index)


def plug(adapter: Adapter, nic: Nic) -> Agent:
    memory, descriptors = HostMemory(), Descriptors()
    firmware = Firmware(adapter, nic, memory, descriptors, Settings())
    return Agent(firmware, Host(adapter, nic, memory, descriptors))


PROTOCOL = replace(postcard.PROTOCOL, plug=plug, split_driver=None)
