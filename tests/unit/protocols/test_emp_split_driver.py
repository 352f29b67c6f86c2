"""EMP's NIC in a separate process, before a host attaches."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

from protocols.core.firmware import FIRST, Adapter
from protocols.core.memory import HostMemory, SharedDmaMemory
from protocols.core.split_memory import SharedActions
from protocols.emp import codec
from protocols.emp.descriptors import SIZE, Descriptors
from protocols.emp.settings import Settings
from protocols.emp.split_driver import Nic
from tests.unit.protocols.emp_dialogue import dialogue, joined_nics


class RecordingNic:
    """`SharedActions` that record sent frames and ignore everything else."""

    def __init__(self) -> None:
        self.frames: list[bytes] = []
        self.send = self.frames.append
        self.dma_read = self.dma_write = self.post_completion = self.when_sent = lambda *_: None

    def send_later(self, make: Callable[[], bytes]) -> None:
        self.send(make())


def test_a_nic_without_a_host_keeps_no_message_and_the_next_host_receives_it() -> None:
    wires, (sender, _) = joined_nics()
    settings, actions = Settings(), RecordingNic()
    nic = Nic(Adapter(1, wires.addresses), cast("SharedActions", actions), settings, codec)
    sender.post_send(1, 7, b"early")
    [frame] = wires.take(0)
    nic.firmware.receive(wires.now, frame)
    assert nic.firmware.counter_values()["headers_admitted"] == 0
    assert nic.firmware.counter_values()["held_full"] == 1
    assert settings == Settings()
    nic.attach(wires.now, 0, cast("SharedDmaMemory", HostMemory()), memoryview(bytearray(settings.descriptors * SIZE)))
    wires.tick()
    [resent] = wires.take(0)
    assert dialogue([resent]) == ["header 0"]
    nic.firmware.receive(wires.now, resent)
    assert nic.firmware.counter_values()["headers_admitted"] == 1
    assert actions.frames == [], "there is no receive yet"


def test_a_host_that_attaches_begins_with_the_nics_frames_per_collection() -> None:
    """A former host's command does not outlast it."""
    settings, addresses = Settings(unit=4), [bytes([2, 0, 0, 0, 0, number]) for number in (1, 2)]
    nic = Nic(Adapter(0, addresses), cast("SharedActions", RecordingNic()), settings, codec)
    for host, incarnation in enumerate((FIRST, FIRST + 1), 1):
        memory = memoryview(bytearray(settings.descriptors * SIZE))
        on_doorbell = nic.attach(host, 0, cast("SharedDmaMemory", HostMemory()), memory)
        assert nic.firmware.settings.unit == 4
        Descriptors(settings.descriptors, memory=memory).write_unit(0, 6)
        on_doorbell(host, 0)
        assert nic.firmware.settings.unit == 6
        nic.detach(host, 0, incarnation + 1)
    assert settings.unit == 4
