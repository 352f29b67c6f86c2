"""Open-MX's library: a node's access to its NIC. Programs open endpoints with it (`endpoint`)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from protocols.core.firmware import Adapter, Agent, Host, HostActions, Nic
from protocols.core.host_work import HostWork, host_work
from protocols.core.memory import Allocating, HostMemory, Pinning
from protocols.openmx import codec
from protocols.openmx.codec_interface import Codec
from protocols.openmx.counters import Counters
from protocols.openmx.driver_endpoint import Driver, fragment_size
from protocols.openmx.endpoint import Endpoint
from protocols.openmx.endpoint_memory import DOORBELLS, PULLS, Commands, OwnCommands
from protocols.openmx.firmware import Firmware
from protocols.openmx.mx_names import RAW_ENDPOINT, MxError, Status
from protocols.openmx.receive_queues import ReceiveQueues
from protocols.openmx.settings import Settings

_SESSION_INCREMENT: Final = 0x9E37_79B1
"""Increment of the session number at each opening of an endpoint, so that sessions before and after a restart
differ."""


class Library(Host):
    """A node's access to its NIC (mx_init).

    number: the node's number. size: number of nodes. work: the cores of the node's host. is_restarted: see `Adapter`.
    allocate: allocates memory that the NIC's process shares; None if the driver is in this process.
    """

    def __init__(
        self,
        adapter: Adapter,
        nic: HostActions,
        memory: HostMemory | Allocating,
        commands: Commands,
        settings: Settings,
        counters: Counters,
    ) -> None:
        self.number: Final = adapter.number
        self.size: Final = len(adapter.addresses)
        self.settings: Final = settings
        self.counters: Final = counters
        self.memory: Final[Pinning] = memory
        self.fragment_size: Final = fragment_size(adapter.mtu)
        self.work: Final[HostWork] = host_work(nic)
        self.host_of: Final = adapter.host_of
        self.allocate: Final[Callable[[int], memoryview] | None] = (
            None if isinstance(memory, HostMemory) else memory.allocate
        )
        self._address = adapter.address
        self._incarnation = adapter.incarnation
        self.is_restarted: Final = adapter.is_restarted
        self.commands: Final = commands
        self.ring_doorbell: Final = nic.ring_doorbell
        self._endpoints: dict[int, Endpoint] = {}
        self._open_count = 0

    def index_of(self, number: int) -> int:
        """Return the default endpoint of a rank: its index on its node."""
        return number - self.host_of(number)

    def open_endpoint(self, index: int = -1, key: int = 0, context_bits: int = 0, context_shift: int = 0) -> Endpoint:
        """Open an endpoint (mx_open_endpoint). index: its number; -1: the default endpoint of this rank. key: required
        of partners that connect. context_bits, context_shift: the bits of match information that select a queue. Raises
        MxError for a number that is in use or out of range."""
        index = self.index_of(self.number) if index < 0 else index
        if index in self._endpoints:
            raise MxError(Status.NO_RESOURCES, f"endpoint {index} is open already: close it first")
        if not 0 <= index < RAW_ENDPOINT:
            raise MxError(Status.NO_RESOURCES, f"endpoint must be 0 to {RAW_ENDPOINT - 1}, got {index}")
        completions = (len(self._endpoints) + 1) * (self.settings.entries + PULLS + 1)
        if completions > DOORBELLS:
            raise MxError(
                Status.NO_RESOURCES,
                f"{len(self._endpoints) + 1} endpoints with {self.settings.entries} entries each need {completions} "
                f"completions, more than {DOORBELLS}; reduce the setting entries",
            )
        if self.settings.migrate:
            self._migrate(index)
        queues = ReceiveQueues(context_bits, context_shift)
        session = (self._incarnation + _SESSION_INCREMENT * self._open_count) & 0xFFFF_FFFF
        self._open_count += 1
        endpoint = self._endpoints[index] = Endpoint(self, index, key, session, queues)
        endpoint.open()
        return endpoint

    def _migrate(self, index: int) -> None:
        """Move the program to the core that takes the interrupts of an endpoint (section 3.2 of the paper)."""
        address = self._address
        core = self.work.receiving_core(codec.pack_tiny(address, address, self.number, index, index, 0, 0, 0, 0))
        if core >= 0:
            self.work.bind(core)

    def close(self, endpoint: Endpoint) -> None:
        """Remove a closed endpoint."""
        del self._endpoints[endpoint.index]

    def on_completion(self, index: int) -> bool | None:
        endpoint = self._endpoints.get(index >> 16)
        if endpoint is not None:
            endpoint.on_completion(index & 0xFFFF)
        return None

    def pending_work(self) -> list[str]:
        return [sentence for endpoint in self._endpoints.values() for sentence in endpoint.pending_work()]


def plug(settings: Settings | None = None, codec: Codec = codec) -> Callable[[Adapter, Nic], Agent]:
    """Make Open-MX's plug. codec: replaces the generated codec (`protocols.core.scapy_codec`)."""
    config = settings if settings is not None else Settings()
    drivers: dict[int, Driver] = {}

    def build(adapter: Adapter, nic: Nic) -> Agent:
        memory, commands, counters = HostMemory(), OwnCommands(), Counters()
        firmware = Firmware(adapter, nic, memory, commands, config, codec, counters, drivers)
        return Agent(firmware, Library(adapter, nic, memory, commands, config, counters))

    return build
