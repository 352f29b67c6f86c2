"""The kernel operations of a plan, as plain data. str() of an operation is its line in the output of ``--dry-run``."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, TypeAlias

from testbed.kernel.offloads import Offloads
from testbed.lazy_dataclass import dataclass
from testbed.spec.graphviz import describe_impairment
from testbed.spec.layout import Impairment, Tunnel

if TYPE_CHECKING:  # only applying a plan needs their code
    from testbed.kernel import netem, shapers
    from testbed.kernel.loss_program import Losses


class _Printed:
    """An operation that str() formats for users. line: format string, in which {0} is the operation."""

    __slots__ = ()
    line: ClassVar[str]

    def __str__(self) -> str:
        return self.line.format(self)


@dataclass(frozen=True, slots=True)
class InNamespace(_Printed):
    """An operation in a namespace. key: key of the namespace."""

    key: str

    @property
    def where(self) -> str:
        return self.key or "the wire namespace"


@dataclass(frozen=True, slots=True)
class _Device(InNamespace):
    """An operation on an interface."""

    device: str
    index: int


@dataclass(frozen=True, slots=True)
class _WireDevice(_Printed):
    """An operation on an interface of the wire namespace."""

    device: str
    index: int


@dataclass(frozen=True, slots=True)
class MakeNamespace(InNamespace):
    def __str__(self) -> str:
        return f"make node {self.key}" if self.key else "make the wire namespace"


@dataclass(frozen=True, slots=True)
class RemoveNamespace(InNamespace):
    line = "remove node {0.key}"


@dataclass(frozen=True, slots=True)
class SetRouting(InNamespace):
    """Enable or disable routing of IPv4 (version 4) or IPv6 (6) between a node's NICs."""

    version: int
    on: bool

    def __str__(self) -> str:
        begin, verb = ("let", "route") if self.on else ("stop", "routing")
        return f"{begin} {self.key} {verb} IPv{self.version} between its NICs"


@dataclass(frozen=True, slots=True)
class SetLimits(InNamespace):
    """Set a node's CPU share (cores) and memory limit (bytes); 0: none."""

    cpu_share: float
    memory: int

    def __str__(self) -> str:
        return f"limit {self.key} to {self.cpu_share or 'all'} cores and {self.memory or 'all'} bytes of memory"


@dataclass(frozen=True, slots=True)
class SetNodeContext(InNamespace):
    """Mark that programs started from now on get other files, directories, variables or CPUs; the kernel is not changed."""

    line = "let programs started in {0.key} from now on see its changed files, environment and CPUs"


@dataclass(frozen=True, slots=True)
class MakeSwitch(_Printed):
    line = "make switch {0.name}"
    name: str
    device: str
    index: int
    mac: str


@dataclass(frozen=True, slots=True)
class MakeCable:
    """Make a veth pair: `device` in namespace `key`, and `peer_device` in namespace `peer_key`.

    mac, peer_mac: empty: chosen by the kernel (wire-side ends). switch: interface index of the bridge that `device` is
    plugged into; 0: none. up: whether `device` is set up. patch: whether the pair is a patch or stage. hooks: the indexes of
    ends that get a hook, as by `AddHook`, before they are up.
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
class MakeTunnel(_Printed):
    """Make a VXLAN interface, whose packets travel between two machines' addresses. mac: empty: chosen by the kernel."""

    label: str
    key: str
    device: str
    index: int
    mtu: int
    tunnel: Tunnel
    mac: str = ""

    def __str__(self) -> str:
        return f"make tunnel {self.label} to {self.tunnel.remote} with the VXLAN id {self.tunnel.vni}"


@dataclass(frozen=True, slots=True)
class RemoveDevice(_Device):
    def __str__(self) -> str:
        return f"remove {self.device}" + (f" in {self.key}" if self.key else "")


@dataclass(frozen=True, slots=True)
class SetDevice(_Device):
    """Change an interface. None leaves a value unchanged. switch: interface index of its bridge; 0 unplugs it."""

    mtu: int | None = None
    mac: str | None = None
    switch: int | None = None

    def __str__(self) -> str:
        desired_values = [("MTU", self.mtu), ("MAC", self.mac), ("switch index", self.switch)]
        changes = ", ".join(f"{name} {value}" for name, value in desired_values if value is not None)
        return f"set {self.device}" + (f" in {self.key}" if self.key else "") + f" to {changes}"


@dataclass(frozen=True, slots=True)
class SetUp(_Device):
    line = "set {0.device} in {0.where} up"


@dataclass(frozen=True, slots=True)
class SetDown(_Device):
    """Set an interface down; its peer loses its carrier."""

    line = "set {0.device} in {0.where} down"


@dataclass(frozen=True, slots=True)
class SetOffloads(_Device):
    """Let the kernel send only these kinds of GSO frames on an interface, and segment the others before."""

    line = "set offloads of {0.device} in {0.where} {0.accepted}"
    accepted: Offloads


@dataclass(frozen=True, slots=True)
class SetPort(_WireDevice):
    """Set whether the switch learns addresses at a port, and whether it floods frames to the port."""

    learning: bool
    flooding: bool

    def __str__(self) -> str:
        learning, flooding = ("" if self.learning else "not "), ("" if self.flooding else "not ")
        return f"set port {self.device} {learning}learning, {flooding}flooding"


@dataclass(frozen=True, slots=True)
class AddForwarding(_Printed):
    line = "forward {0.mac} on {0.switch} to {0.device}"
    switch: str
    device: str
    index: int
    mac: str


@dataclass(frozen=True, slots=True)
class RemoveForwarding(_Printed):
    line = "stop forwarding {0.mac} on {0.switch}"
    switch: str
    index: int
    mac: str


@dataclass(frozen=True, slots=True)
class FlushLearned(_Printed):
    """Flush the addresses that a switch has learned."""

    line = "flush the addresses learned by {0.switch}"
    switch: str
    index: int


@dataclass(frozen=True, slots=True)
class Join(_Printed):
    """Join two wire-side ends: frames that arrive on either end leave by the other."""

    line = "join {0.label}"
    label: str
    index: int
    other_index: int


@dataclass(frozen=True, slots=True)
class Part(_WireDevice):
    """Undo a Join at one end."""

    line = "part {0.device}"


@dataclass(frozen=True, slots=True)
class Redirect(_WireDevice):
    """Redirect frames that arrive on an interface to another one, before any other processing.

    out: index of the other interface. prepared: whether `PrepareRedirect` has prepared it, so that it takes effect at once.
    """

    line = "redirect {0.device} to {0.out_device}"
    out_device: str
    out: int
    prepared: bool = False


@dataclass(frozen=True, slots=True)
class PrepareRedirect(_WireDevice):
    """Do the slow part of a redirection, so that `Redirect` can take effect at once."""

    line = "prepare to redirect {0.device}"


@dataclass(frozen=True, slots=True)
class EndRedirect(_WireDevice):
    """End a redirection. prepared: keep it prepared; the end then takes effect at once."""

    prepared: bool = False

    def __str__(self) -> str:
        return f"stop redirecting {self.device}" + (" for now" if self.prepared else "")


@dataclass(frozen=True, slots=True)
class PrepareEgress(_WireDevice):
    """Prepare to redirect the frames that leave by a port, with two exceptions.

    Frames that come from the stage leave by the port. Frames that entered the switch by the patch are dropped, since they
    came from the cable of this port.
    """

    line = "prepare to redirect outgoing frames of {0.device}"
    patch_device: str
    stage_device: str


@dataclass(frozen=True, slots=True)
class RedirectEgress(_WireDevice):
    """Redirect the frames that leave by a port to its patch, with the exceptions of `PrepareEgress`."""

    line = "redirect outgoing frames of {0.device} to {0.patch_device}"
    patch_device: str
    patch: int


@dataclass(frozen=True, slots=True)
class EndEgress(_WireDevice):
    """End a `RedirectEgress`. prepared: keep it prepared."""

    prepared: bool = False

    def __str__(self) -> str:
        return f"stop redirecting outgoing frames of {self.device}" + (" for now" if self.prepared else "")


@dataclass(frozen=True, slots=True)
class Drain(_Printed):
    """Wait until an interface to which no more frames are sent has sent the frames in its qdisc.

    Frames in a token bucket are sent early. link: name of the link that the interface belongs to.
    """

    line = "drain {0.device}"
    link: str
    device: str
    index: int


@dataclass(frozen=True, slots=True)
class FlushPort(_WireDevice):
    """Flush the addresses that a switch has learned at a port."""

    line = "flush the addresses learned at {0.device}"


@dataclass(frozen=True, slots=True)
class AddHook(_WireDevice):
    """Prepare an interface for diversion, by a clsact qdisc. If the interface is up, frames that it would send in the next
    milliseconds are lost."""

    line = "add a hook to {0.device}"


@dataclass(frozen=True, slots=True)
class AwaitCarrier(_WireDevice):
    """Wait until the kernel sends on an interface that has just been set up."""

    line = "wait until {0.device} can send"


@dataclass(frozen=True, slots=True)
class Divert(_WireDevice):
    """Divert frames that arrive on an interface to the relay, which receives them on the interface `tap`.

    tap: interface index. back: at a switch's port, the index of the tap for frames that leave by the port; 0 elsewhere. The
    relay marks its frames with the port's index: on `tap`, only marked frames pass, and they enter the port.
    """

    line = "divert frames of {0.device} to the relay"
    tap: int
    back: int = 0


@dataclass(frozen=True, slots=True)
class Undivert(_WireDevice):
    """End the diversion of an interface's frames.

    tap: whether the interface is a tap. Frames that the relay still sends to a tap are lost when its diversion ends.
    """

    line = "stop diverting frames of {0.device}"
    tap: bool = False


@dataclass(frozen=True, slots=True)
class SetNetem(_WireDevice):
    """Set netem on a stage's end. changed: whether a value that the kernel does not report has changed."""

    impairment: Impairment
    options: netem.Options
    changed: bool = False

    def __str__(self) -> str:
        return f"let netem impair outgoing frames of {self.device}: {describe_impairment(self.impairment)}"


@dataclass(frozen=True, slots=True)
class SetShaper(_WireDevice):
    """Limit the rate at a stage's end by a token bucket. before: the previous settings, if known."""

    impairment: Impairment
    options: shapers.Options
    before: shapers.Options | None = None

    def __str__(self) -> str:
        return f"let a token bucket shape outgoing frames of {self.device}: {describe_impairment(self.impairment)}"


@dataclass(frozen=True, slots=True)
class RemoveQdisc(_WireDevice):
    """Remove an interface's queueing discipline together with the frames that wait in it."""

    line = "remove the queueing discipline of {0.device}"


@dataclass(frozen=True, slots=True)
class SetLoss(_WireDevice):
    """Set a classifier that loses frames that arrive on a free end."""

    impairment: Impairment
    losses: Losses

    def __str__(self) -> str:
        return f"let a classifier lose incoming frames of {self.device}: {describe_impairment(self.impairment)}"


@dataclass(frozen=True, slots=True)
class RemoveLoss(_WireDevice):
    line = "remove the classifier of {0.device}"


@dataclass(frozen=True, slots=True)
class AddAddress(_Device):
    line = "add address {0.address} to {0.key}:{0.device}"
    address: str


@dataclass(frozen=True, slots=True)
class RemoveAddress(_Device):
    line = "remove address {0.address} from {0.key}:{0.device}"
    address: str


@dataclass(frozen=True, slots=True)
class AddRoute(InNamespace):
    line = "add route {0.destination} via {0.via} to {0.key}"
    destination: str
    via: str


@dataclass(frozen=True, slots=True)
class RemoveRoute(InNamespace):
    line = "remove route {0.destination} via {0.via} from {0.key}"
    destination: str
    via: str


Operation: TypeAlias = (
    MakeNamespace
    | RemoveNamespace
    | SetRouting
    | SetLimits
    | SetNodeContext
    | MakeSwitch
    | MakeCable
    | MakeTunnel
    | RemoveDevice
    | SetDevice
    | SetUp
    | SetDown
    | SetOffloads
    | SetPort
    | AddForwarding
    | RemoveForwarding
    | FlushLearned
    | Join
    | Part
    | PrepareRedirect
    | Redirect
    | EndRedirect
    | PrepareEgress
    | RedirectEgress
    | EndEgress
    | Drain
    | FlushPort
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
