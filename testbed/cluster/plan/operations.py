"""The kernel operations of a plan, as plain data. str() is the line that ``--dry-run`` prints."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from testbed.kernel.offloads import Offloads
from testbed.spec.graphviz import described
from testbed.spec.layout import Impairment

if TYPE_CHECKING:  # printing a plan must not import pyroute2
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
    """Enable or disable routing of IPv4 (version 4) or IPv6 (6) between a node's NICs."""

    key: str
    version: int
    on: bool

    def __str__(self) -> str:
        verb = ("let", "route") if self.on else ("stop", "routing")
        return f"{verb[0]} {self.key} {verb[1]} IPv{self.version} between its NICs"


@dataclass(frozen=True, slots=True)
class SetLimits:
    """Set a node's CPU share (cores) and memory limit (bytes); 0: none."""

    key: str
    cpu_share: float
    memory: int

    def __str__(self) -> str:
        return f"limit {self.key} to {self.cpu_share or 'all'} cores and {self.memory or 'all'} bytes of memory"


@dataclass(frozen=True, slots=True)
class SetSurroundings:
    """Note that programs started from now on see other files, variables, CPUs or names; no kernel operation."""

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
    """Make a veth pair: `device` in namespace `key`, up or not, plugged into the switch with that index (0: none), and
    its peer.

    An empty MAC leaves the choice to the kernel (wire-side ends). patch: the pair stands in for a link's end at a
    switch. hooks: the indexes of ends that get a hook before they are up, as by `AddHook`.
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
    hooks: tuple[int, ...] = ()

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
    """Change an interface; None leaves a value unchanged. switch 0 unplugs it."""

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
    """Set an interface down; the other end of its cable loses its carrier."""

    key: str
    device: str
    index: int

    def __str__(self) -> str:
        return f"set {self.device} in {self.key or 'the wire namespace'} down"


@dataclass(frozen=True, slots=True)
class SetOffloads:
    """Let an interface accept these GSO frames, and otherwise only frames that fit on a wire."""

    key: str
    device: str
    index: int
    taken: Offloads

    def __str__(self) -> str:
        return f"set offloads of {self.device} in {self.key or 'the wire namespace'} {self.taken}"


@dataclass(frozen=True, slots=True)
class SetPort:
    """Set whether a switch's port learns addresses and floods."""

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
    """Flush the addresses that a switch has learned."""

    switch: str
    index: int

    def __str__(self) -> str:
        return f"forget what {self.switch} learned"


@dataclass(frozen=True, slots=True)
class Join:
    """Join two wire-side ends: frames that come in on either leave by the other."""

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
class Redirect:
    """Redirect frames that come in on an interface to another, before any other processing. prepared: at once, by what
    `PrepareRedirect` has set up."""

    device: str
    index: int
    out_device: str
    out: int
    prepared: bool = False

    def __str__(self) -> str:
        return f"redirect {self.device} to {self.out_device}"


@dataclass(frozen=True, slots=True)
class PrepareRedirect:
    """Do all of a redirection that takes the kernel long."""

    device: str
    index: int

    def __str__(self) -> str:
        return f"prepare to redirect {self.device}"


@dataclass(frozen=True, slots=True)
class EndRedirect:
    """prepared: at once, and it stays prepared."""

    device: str
    index: int
    prepared: bool = False

    def __str__(self) -> str:
        return f"redirect {self.device} no more" + (" for now" if self.prepared else "")


@dataclass(frozen=True, slots=True)
class PrepareEgress:
    """Prepare to redirect the frames that leave by a port: those that come from its stage leave in any case, and those that
    came in by its patch, which are from the cable's own end, go nowhere."""

    device: str
    index: int
    patch_device: str
    stage_device: str

    def __str__(self) -> str:
        return f"prepare to redirect what leaves by {self.device}"


@dataclass(frozen=True, slots=True)
class RedirectEgress:
    """Redirect the frames that leave by a port to its patch, at once, by what `PrepareEgress` has set up."""

    device: str
    index: int
    patch_device: str
    patch: int

    def __str__(self) -> str:
        return f"redirect what leaves by {self.device} to {self.patch_device}"


@dataclass(frozen=True, slots=True)
class EndEgress:
    """End what `RedirectEgress` does. prepared: it stays prepared."""

    device: str
    index: int
    prepared: bool = False

    def __str__(self) -> str:
        return f"redirect what leaves by {self.device} no more" + (" for now" if self.prepared else "")


@dataclass(frozen=True, slots=True)
class Drain:
    """Wait until an interface that receives no more frames has sent those in its discipline.

    Frames in a token bucket are sent early. link: the link to which the frames belong.
    """

    link: str
    device: str
    index: int

    def __str__(self) -> str:
        return f"drain {self.device}"


@dataclass(frozen=True, slots=True)
class ForgetPort:
    """Flush the addresses that a switch has learned at a port."""

    device: str
    index: int

    def __str__(self) -> str:
        return f"forget what was learned at {self.device}"


@dataclass(frozen=True, slots=True)
class AddHook:
    """Prepare an interface for diversion. If it is up, frames that it would send in the next milliseconds are lost."""

    device: str
    index: int

    def __str__(self) -> str:
        return f"add a hook to {self.device}"


@dataclass(frozen=True, slots=True)
class AwaitCarrier:
    """Wait until the kernel sends by an interface that has just come up."""

    device: str
    index: int

    def __str__(self) -> str:
        return f"wait until {self.device} can send"


@dataclass(frozen=True, slots=True)
class Divert:
    """Divert frames that come in on an interface to the relay, at the interface `tap`.

    back: at a switch's port, the tap for frames that leave by the port; 0 elsewhere. Frames marked with the port's
    index come from the relay: those on `tap` enter the port, and only they pass there.
    """

    device: str
    index: int
    tap: int
    back: int = 0

    def __str__(self) -> str:
        return f"divert frames of {self.device} to the relay"


@dataclass(frozen=True, slots=True)
class Undivert:
    """End the diversion of an interface's frames.

    tap: the interface is one at which the relay listens; frames that the relay still holds would be lost.
    """

    device: str
    index: int
    tap: bool = False

    def __str__(self) -> str:
        return f"divert frames of {self.device} no more"


@dataclass(frozen=True, slots=True)
class SetNetem:
    """Set netem on a stage's end. changed: since it was last set, in a value that the kernel does not report."""

    device: str
    index: int
    impairment: Impairment
    options: netem.Options
    changed: bool = False

    def __str__(self) -> str:
        return f"let netem impair what leaves by {self.device}: {described(self.impairment)}"


@dataclass(frozen=True, slots=True)
class SetShaper:
    """Limit the rate at a stage's end by a token bucket. before: its previous settings, if known."""

    device: str
    index: int
    impairment: Impairment
    options: shapers.Options
    before: shapers.Options | None = None

    def __str__(self) -> str:
        return f"let a token bucket shape what leaves by {self.device}: {described(self.impairment)}"


@dataclass(frozen=True, slots=True)
class RemoveQdisc:
    """Remove an interface's queueing discipline together with the frames that wait in it."""

    device: str
    index: int

    def __str__(self) -> str:
        return f"remove the queueing discipline of {self.device}"


@dataclass(frozen=True, slots=True)
class SetLoss:
    """Set a classifier that loses frames coming in by a free end."""

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
    | PrepareRedirect
    | Redirect
    | EndRedirect
    | PrepareEgress
    | RedirectEgress
    | EndEgress
    | Drain
    | ForgetPort
    | AddHook
    | AwaitCarrier
    | Divert
    | Undivert
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
