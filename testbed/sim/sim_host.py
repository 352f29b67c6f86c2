"""A simulated computer: its cores, and the NIC that its ranks share."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from protocols.core.firmware import Adapter
from protocols.core.host_work import SWITCH
from protocols.core.profile import Cost, Profile
from protocols.core.protocol import Steering, select_hash
from testbed.engine.loop import POLL_TIME, Loop, VirtualClock
from testbed.engine.server import Core, Server
from testbed.engine.tasks import Task
from testbed.fabric.interface import Receive
from testbed.nic.hosted import HostedNic, HostSide
from testbed.nic.immediate import ImmediateNic, Port
from testbed.nic.priced import Hardware, PricedNic
from testbed.spec.layout import End
from testbed.spec.layout import Node as NodeLayout

if TYPE_CHECKING:
    from testbed.sim.sim_node import SimNode

_GROUP_BIT: Final = 1  # in a MAC's first byte: the address of a group, or broadcast


@dataclass(frozen=True, slots=True)
class Prices:
    """Costs of a cluster's hardware. default: profile of the nodes that are not in `by_node`. steering: the protocol's
    hashes, by name; the hash that a profile names chooses a frame's receive queue."""

    default: Profile
    by_node: Mapping[str, Profile] = field(default_factory=dict)
    steering: Steering = field(default_factory=dict)

    def of(self, node: str) -> Profile:
        """Return the profile of a node."""
        return self.by_node.get(node, self.default)


class SimHost:
    """A computer. end: the end of a link at its NIC. profile: its costs. costs: those in force
    (`set_costs`). ranks: the environments of its ranks' programs, in
    order. caches: number of each core's cache. port: the port to which its NIC sends. hardware, host_side: the parts that
    the functions of its NIC share, without and with `Profile.hosted`."""

    __slots__ = (
        "_clock",
        "_loop",
        "_steering",
        "caches",
        "cores",
        "costs",
        "end",
        "hardware",
        "host_side",
        "name",
        "port",
        "profile",
        "ranks",
    )

    def __init__(
        self,
        clock: VirtualClock,
        loop: Loop,
        layout: NodeLayout,
        profile: Profile,
        port: Port,
        steering: Steering | None = None,
    ) -> None:
        """port: takes the NIC's frames. steering: see `Prices`."""
        self._clock = clock
        self._steering = steering or {}
        self._loop = loop
        self.name: Final = layout.name
        self.end: Final = End(layout.name, layout.nics[0].name)
        self.profile: Final = profile
        self.costs = profile
        self.ranks: Final[list[SimNode]] = []
        core_count = max(layout.cores or profile.cores, *(core + 1 for core in layout.ranks), 1)
        names = (
            [f"core of {layout.name}"]
            if core_count == 1
            else [f"core {core} of {layout.name}" for core in range(core_count)]
        )
        switch = profile.work.get(SWITCH, Cost()).fixed
        self.cores: Final = tuple(Core(name, loop, switch, profile.timeslice) for name in names)
        self.caches: Final = caches_of(layout, profile, core_count)
        for core in layout.ranks or (0,):
            self.cores[core].programs += 1
        self.port: Final = FunctionPort(loop, port) if len(layout.ranks) > 1 else port
        self.reset_hardware()

    def reset_hardware(self) -> None:
        """Replace the hardware of the NIC by new hardware: a restarted NIC has lost its state."""
        profile = self.profile
        self.hardware = Hardware(self._clock, self._loop, self.name, profile.processors)
        steering = select_hash(self._steering, profile.steering)
        steer = None if steering is None else steering.steer
        self.host_side = HostSide(self._clock, self.name, self.cores, self.caches, profile.receive_queues, steer)

    def nic(self, rank: SimNode, adapter: Adapter) -> ImmediateNic:
        """Make a rank's NIC, or its function of the shared NIC, with the costs in force. Also binds the rank to its first
        core."""
        clock, loop, port, profile = self._clock, self._loop, self.port, self.costs
        number, mtu = rank.rank.core, adapter.mtu
        rank.core = self.cores[number]
        if profile.is_zero_cost:
            return ImmediateNic(clock, loop, port, mtu)
        if not profile.hosted:
            return PricedNic(clock, loop, port, rank.core, profile, mtu, self.hardware)
        nic = HostedNic(clock, loop, port, number, profile, mtu, self.host_side, adapter.address)
        nic.on_bind = rank.move_to
        return nic

    def set_costs(self, costs: Profile) -> None:
        """Let the NIC use these costs from now on, even after its restart."""
        self.costs = costs
        for rank in self.ranks:
            rank.nic.set_costs(costs)

    def receive(self, now: int, frame: bytes) -> None:
        """Receive a frame from the wire."""
        if isinstance(self.port, FunctionPort):
            self.port.receive(now, frame)
        else:
            self.ranks[0].nic.receive(now, frame)

    @property
    def servers(self) -> Sequence[Server]:
        """The resources of the computer that can be busy."""
        return (*self.cores, *(self.ranks[0].nic.servers if self.ranks else ()))


class PollAccounts:
    """Accounting for the polls of tasks: a poll takes the time of the node's profile and keeps the rank's core busy."""

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self._ranks: dict[int, SimNode] = {}  # by number of the task

    def adopt(self, task: Task[Any], rank: SimNode, profile: Profile) -> None:
        """Account a task's polls to a rank, if its profile has costs."""
        if not profile.is_zero_cost:
            self._loop.on_poll = self._on_poll
            task.poll_time = profile.poll or POLL_TIME
            self._ranks[task.number] = rank

    def _on_poll(self, task: Task[Any], begins: bool) -> None:
        """Account for a poll that begins or ends."""
        rank = self._ranks.get(task.number)
        if rank is not None:
            (rank.core.begin_poll if begins else rank.core.end_poll)(self._loop.now())


def caches_of(layout: NodeLayout, profile: Profile, cores: int) -> tuple[int, ...]:
    """Return the number of each core's cache. cores: number of cores."""
    if not layout.caches:
        return tuple([core // profile.cores_per_cache for core in range(cores)])
    shared = {core: number for number, group in enumerate(layout.caches) for core in group}
    return tuple([shared.get(core, len(layout.caches) + core) for core in range(cores)])


class FunctionPort(Port):
    """The port that the functions of a NIC share.

    A frame from one function to another is looped back in the NIC: a switch would not send it back. A frame to the sender's
    own address goes through the network. A received frame whose destination is no function's address is dropped.
    """

    __slots__ = ("_link_port", "_loop", "_receivers")

    def __init__(self, loop: Loop, port: Port) -> None:
        """port: the port to the link."""
        self._loop = loop
        self._link_port = port
        self._receivers: dict[bytes, Receive] = {}

    def set_receiver(self, address: bytes, receive: Receive) -> None:
        """Pass frames for a function's address to it from now on."""
        self._receivers[address] = receive

    def enter(self, now: int, frame: bytes) -> bool | None:
        """Send a function's frame, at time `now` or later."""
        destination = frame[:6]
        receive = self._receivers.get(destination)
        if receive is None or destination == frame[6:12]:
            return self._link_port.enter(now, frame)
        self._loop.at(max(now, self._loop.now()), self._loop_back, frame)
        return None

    def when_sent(self, now: int, callback: Callable[[int], object]) -> None:
        """Delegate to the port to the link: frames that are looped back do not wait."""
        self._link_port.when_sent(now, callback)

    def _loop_back(self, frame: bytes) -> None:
        self._receivers[frame[:6]](self._loop.now(), frame)

    def receive(self, now: int, frame: bytes) -> None:
        """Receive a frame from the wire and pass it to the function with its destination address, or to all functions."""
        receive = self._receivers.get(frame[:6])
        if receive is not None:
            receive(now, frame)
        elif frame[0] & _GROUP_BIT:
            for receive in self._receivers.values():
                receive(now, frame)
