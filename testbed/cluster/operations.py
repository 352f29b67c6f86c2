"""The kernel operations that a plan is made of, as plain data. str() is the line that ``--dry-run`` prints."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from testbed.kernel.offloads import Offloads
from testbed.spec.drawing import described
from testbed.spec.layout import Impairment

if TYPE_CHECKING:  # who only prints a plan does not pay for importing pyroute2
    from testbed.kernel import netem, shapers
    from testbed.kernel.loss_program import Losses


@dataclass(frozen=True, slots=True)
class MakeNamespace:
    key: str

    def __str__(self) -> str:
        return f"make node {self.key}" if self.key else "make the wire namespace"


@dataclass(frozen=True, slots=True)
class RemoveNamespace:
    key: str

    def __str__(self) -> str:
        return f"remove node {self.key}"


@dataclass(frozen=True, slots=True)
class SetRouting:
    """Let a node route IPv4 (version 4) or IPv6 (6) between its NICs, or not."""

    key: str
    version: int
    on: bool

    def __str__(self) -> str:
        verb = ("let", "route") if self.on else ("stop", "routing")
        return f"{verb[0]} {self.key} {verb[1]} IPv{self.version} between its NICs"


@dataclass(frozen=True, slots=True)
class SetLimits:
    """A node's CPU share (cores) and memory limit (bytes), 0 for none."""

    key: str
    cpu_share: float
    memory: int

    def __str__(self) -> str:
        return f"limit {self.key} to {self.cpu_share or 'all'} cores and {self.memory or 'all'} bytes of memory"


@dataclass(frozen=True, slots=True)
class SetSurroundings:
    """Programs started from now on see other files, variables, CPUs or names than before: no kernel operation."""

    key: str

    def __str__(self) -> str:
        return f"let programs started in {self.key} from now on see its changed files, environment and CPUs"


@dataclass(frozen=True, slots=True)
class MakeSwitch:
    name: str
    device: str
    index: int
    mac: str

    def __str__(self) -> str:
        return f"make switch {self.name}"


@dataclass(frozen=True, slots=True)
class MakeCable:
    """A veth pair: `device` in namespace `key`, up or not, plugged into the switch with that index (0: none); its peer.

    An empty MAC leaves the choice to the kernel (wire-side ends). patch: it stands in for a link's end at a switch.
    """

    label: str
    key: str
    device: str
    index: int
    mac: str
    switch: int
    up: bool
    peer_key: str
    peer_device: str
    peer_index: int
    peer_mac: str
    mtu: int
    patch: bool = False

    def __str__(self) -> str:
        return f"make {'patch' if self.patch else 'link'} {self.label}"


@dataclass(frozen=True, slots=True)
class RemoveDevice:
    key: str
    device: str
    index: int

    def __str__(self) -> str:
        return f"remove {self.device}" + (f" in {self.key}" if self.key else "")


@dataclass(frozen=True, slots=True)
class SetDevice:
    """Change an interface; None leaves a value as it is. switch 0 unplugs."""

    key: str
    device: str
    index: int
    mtu: int | None = None
    mac: str | None = None
    switch: int | None = None

    def __str__(self) -> str:
        wishes = [("MTU", self.mtu), ("MAC", self.mac), ("switch index", self.switch)]
        changes = ", ".join(f"{name} {value}" for name, value in wishes if value is not None)
        return f"set {self.device}" + (f" in {self.key}" if self.key else "") + f" to {changes}"


@dataclass(frozen=True, slots=True)
class SetUp:
    key: str
    device: str
    index: int

    def __str__(self) -> str:
        return f"set {self.device} in {self.key or 'the wire namespace'} up"


@dataclass(frozen=True, slots=True)
class SetDown:
    """Whoever is at the other end of the cable loses its carrier."""

    key: str
    device: str
    index: int

    def __str__(self) -> str:
        return f"set {self.device} in {self.key or 'the wire namespace'} down"


@dataclass(frozen=True, slots=True)
class SetOffloads:
    """Let an interface take these unfinished frames, and else none but those that could be on a wire."""

    key: str
    device: str
    index: int
    taken: Offloads

    def __str__(self) -> str:
        return f"set offloads of {self.device} in {self.key or 'the wire namespace'} {self.taken}"


@dataclass(frozen=True, slots=True)
class SetPort:
    """How a switch's port behaves: learning addresses, sending out frames for all."""

    device: str
    index: int
    learning: bool
    flooding: bool

    def __str__(self) -> str:
        learning, flooding = ("" if self.learning else "not "), ("" if self.flooding else "not ")
        return f"set port {self.device} {learning}learning, {flooding}flooding"


@dataclass(frozen=True, slots=True)
class AddForwarding:
    switch: str
    device: str
    index: int
    mac: str

    def __str__(self) -> str:
        return f"forward {self.mac} on {self.switch} to {self.device}"


@dataclass(frozen=True, slots=True)
class RemoveForwarding:
    switch: str
    index: int
    mac: str

    def __str__(self) -> str:
        return f"forget {self.mac} on {self.switch}"


@dataclass(frozen=True, slots=True)
class ForgetLearned:
    """Let a switch forget where it learned addresses."""

    switch: str
    index: int

    def __str__(self) -> str:
        return f"forget what {self.switch} learned"


@dataclass(frozen=True, slots=True)
class Join:
    """Make one cable of two: what comes in on either wire-side end leaves by the other."""

    label: str
    device: str
    index: int
    other_device: str
    other_index: int

    def __str__(self) -> str:
        return f"join {self.label}"


@dataclass(frozen=True, slots=True)
class Part:
    """Undo a Join at one end."""

    device: str
    index: int

    def __str__(self) -> str:
        return f"part {self.device}"


@dataclass(frozen=True, slots=True)
class SetNetem:
    """Let netem impair what leaves by a free end. changed: since it was last set, in what the kernel does not report."""

    device: str
    index: int
    impairment: Impairment
    options: netem.Options
    changed: bool = False

    def __str__(self) -> str:
        return f"let netem impair what leaves by {self.device}: {described(self.impairment)}"


@dataclass(frozen=True, slots=True)
class SetShaper:
    """Let a token bucket hold what leaves by a free end to a rate. before: what it was last told, if that is known."""

    device: str
    index: int
    impairment: Impairment
    options: shapers.Options
    before: shapers.Options | None = None

    def __str__(self) -> str:
        return f"let a token bucket shape what leaves by {self.device}: {described(self.impairment)}"


@dataclass(frozen=True, slots=True)
class RemoveQdisc:
    """Take the queueing discipline of an interface away, with what waits in it."""

    device: str
    index: int

    def __str__(self) -> str:
        return f"remove the queueing discipline of {self.device}"


@dataclass(frozen=True, slots=True)
class SetLoss:
    """Let a classifier lose frames that come in by a free end."""

    device: str
    index: int
    impairment: Impairment
    losses: Losses

    def __str__(self) -> str:
        return f"let a classifier lose frames that come in by {self.device}: {described(self.impairment)}"


@dataclass(frozen=True, slots=True)
class RemoveLoss:
    device: str
    index: int

    def __str__(self) -> str:
        return f"remove the classifier of {self.device}"


@dataclass(frozen=True, slots=True)
class AddAddress:
    key: str
    device: str
    index: int
    address: str

    def __str__(self) -> str:
        return f"add address {self.address} to {self.key}:{self.device}"


@dataclass(frozen=True, slots=True)
class RemoveAddress:
    key: str
    device: str
    index: int
    address: str

    def __str__(self) -> str:
        return f"remove address {self.address} from {self.key}:{self.device}"


@dataclass(frozen=True, slots=True)
class AddRoute:
    key: str
    destination: str
    via: str

    def __str__(self) -> str:
        return f"add route {self.destination} via {self.via} to {self.key}"


@dataclass(frozen=True, slots=True)
class RemoveRoute:
    key: str
    destination: str
    via: str

    def __str__(self) -> str:
        return f"remove route {self.destination} via {self.via} from {self.key}"


Operation: TypeAlias = (
    MakeNamespace
    | RemoveNamespace
    | SetRouting
    | SetLimits
    | SetSurroundings
    | MakeSwitch
    | MakeCable
    | RemoveDevice
    | SetDevice
    | SetUp
    | SetDown
    | SetOffloads
    | SetPort
    | AddForwarding
    | RemoveForwarding
    | ForgetLearned
    | Join
    | Part
    | SetNetem
    | SetShaper
    | RemoveQdisc
    | SetLoss
    | RemoveLoss
    | AddAddress
    | RemoveAddress
    | AddRoute
    | RemoveRoute
)
