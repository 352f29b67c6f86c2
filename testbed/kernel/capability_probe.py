"""Probe of the kernel features that the testbed needs. Each one is tried in a scratch namespace; versions are not
compared."""

from __future__ import annotations

import errno
import os
import tempfile
from collections.abc import Callable, Container
from dataclasses import dataclass

from testbed.errors import KernelError, PermissionDeniedError, TestbedError, reason_of
from testbed.kernel import cgroups, diversion, mounts, netlink_messages, syscalls, userns
from testbed.kernel.children import in_child
from testbed.kernel.netlink import RequestError, RouteSocket


@dataclass(frozen=True, slots=True)
class Capability:
    """A kernel feature. available: whether this user can use it. detail: result of the probe. meaning: what depends on the
    feature. remedy: how to make it available; empty if it is."""

    name: str
    available: bool
    detail: str
    meaning: str
    remedy: str


def probe() -> list[Capability]:
    """Probe all features. Nothing that the probes make remains."""
    groups = _cgroups("cpu", "CPU shares of nodes"), _cgroups("memory", "memory limits of nodes")
    return [_privilege(), _user_namespaces(), *_namespace_capabilities(), *groups]


def probe_for_tunnels() -> list[Capability]:
    """Probe only the features that links to other machines need: "root", "network namespaces" and "vxlan"."""
    return [_privilege(), *_namespace_capabilities({"vxlan"})]


def _namespace_capabilities(names: Container[str] | None = None) -> list[Capability]:
    """Run trials in a scratch namespace. names: of the trials; None: all."""
    enter = _new_namespace if userns.is_root() else userns.become_namespace_root
    try:
        return in_child(lambda: _run_trials(enter, names))
    except (TestbedError, OSError) as error:
        return [Capability("network namespaces", False, _reason(error), "everything", "run as root")]


def _reason(error: TestbedError | OSError) -> str:
    return reason_of(error) if isinstance(error, OSError) else str(error)


def _new_namespace() -> None:
    try:
        syscalls.unshare(syscalls.CLONE_NEWNET)
    except OSError as error:
        raise TestbedError(f"the kernel refused a network namespace: {error.strerror}") from error


def _privilege() -> Capability:
    root = userns.is_root()
    return Capability(
        "root",
        root,
        "has CAP_NET_ADMIN and CAP_SYS_ADMIN" if root else f"user {os.geteuid()}",
        "clusters that 'ip netns' sees; loss by BPF",
        "run as root; without it, clusters are in a user namespace",
    )


def _user_namespaces() -> Capability:
    meaning = "clusters without root"
    try:
        in_child(userns.become_namespace_root)
    except PermissionDeniedError as error:
        return Capability("user namespaces", False, "refused", meaning, str(error))
    except (TestbedError, OSError) as error:
        return Capability("user namespaces", False, _reason(error), meaning, "run as root")
    return Capability("user namespaces", True, "made one", meaning, "")


_MODULE = "load the module (modprobe {0}), or install the kernel's extra modules (linux-modules-extra on Ubuntu)"

# name, function that tries the feature, meaning and remedy of `Capability`
_Trial = tuple[str, Callable[[RouteSocket], None], str, str]


def _run_trials(enter: Callable[[], None], names: Container[str] | None) -> list[Capability]:
    """Run the trials with these names, or all, after `enter`. Later trials use the interfaces of earlier ones."""
    enter()
    capabilities = [Capability("network namespaces", True, "made one", "everything", "")]
    route = RouteSocket()
    trials: list[_Trial] = [
        ("veth", _try_veth, "every link", _MODULE.format("veth")),
        ("bridge", _try_bridge, "switches", _MODULE.format("bridge")),
        ("static forwarding", _try_forwarding, "switches in a ring or a fat tree", _MODULE.format("bridge")),
        ("redirection", _try_redirection, "links between two nodes", _MODULE.format("cls_u32 act_mirred")),
        ("diversion", _try_diversion, "links that the relay forwards", _MODULE.format("cls_bpf act_mirred")),
        ("netem", _try_qdisc("netem"), "delay and loss in the kernel", _MODULE.format("sch_netem")),
        ("tbf", _try_qdisc("tbf"), "rates in the kernel", _MODULE.format("sch_tbf")),
        ("htb", _try_qdisc("htb"), "rates in the kernel", _MODULE.format("sch_htb")),
        (
            "bpf classifier",
            _try_classifier,
            "loss in the kernel without netem",
            "run as root; a kernel with CONFIG_NET_CLS_BPF",
        ),
        ("vxlan", _try_vxlan, "links to other machines", _MODULE.format("vxlan") + "; run as root"),
        ("file overlays", _try_bind_file, "files of a node's own", "a kernel with tmpfs"),
    ]
    for name, attempt, meaning, remedy in trials:
        if names is not None and name not in names:
            continue
        try:
            attempt(route)
        except RequestError as error:
            capabilities.append(Capability(name, False, error.refusals[0].reason, meaning, remedy))
        except OSError as error:
            capabilities.append(Capability(name, False, error.strerror or str(error), meaning, remedy))
        except (KernelError, PermissionDeniedError) as error:
            capabilities.append(Capability(name, False, str(error), meaning, remedy))
        else:
            capabilities.append(Capability(name, True, "works", meaning, ""))
    return capabilities


_MAC = "06:00:00:00:00:01"


def _try_veth(route: RouteSocket) -> None:
    namespace = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
    try:
        route.execute([netlink_messages.make_veth("a", 101, 1500, namespace, "b", 102)])
    finally:
        os.close(namespace)


def _try_vxlan(route: RouteSocket) -> None:
    namespace = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
    try:
        route.execute([netlink_messages.make_vxlan("vxlan", "192.0.2.1", "192.0.2.2", 1, 103, 1400, namespace)])
    finally:
        os.close(namespace)


def _try_bridge(route: RouteSocket) -> None:
    route.execute([netlink_messages.make_bridge("s", 100, _MAC), netlink_messages.set_link(101, bridge=100)])


def _try_forwarding(route: RouteSocket) -> None:
    route.execute(
        [netlink_messages.set_bridge_port(101, 0, 0), netlink_messages.add_fdb_entry(101, "02:00:00:00:00:01")]
    )


def _try_redirection(route: RouteSocket) -> None:
    route.execute([netlink_messages.add_clsact(102), netlink_messages.redirect_ingress(102, 101)])


def _try_diversion(route: RouteSocket) -> None:
    route.execute([netlink_messages.add_clsact(102), diversion.divert(102, diversion.INGRESS, 101, 102)])


def _try_qdisc(kind: str) -> Callable[[RouteSocket], None]:
    """Return a trial that adds a qdisc without options. A kernel that has the qdisc uses defaults, or rejects the missing
    options with another error than ENOENT."""

    def attempt(route: RouteSocket) -> None:
        try:
            route.execute([netlink_messages.add_qdisc(102, kind)])
        except RequestError as error:
            if error.refusals[0].errno == errno.ENOENT:
                raise
        else:
            route.execute([netlink_messages.remove_qdisc(102)])

    return attempt


def _try_bind_file(_route: RouteSocket) -> None:
    syscalls.unshare(syscalls.CLONE_NEWNS)
    mounts.make_slave()
    with tempfile.NamedTemporaryFile() as source:
        mounts.bind_file(source.name, "/etc/netns-testbed-probe")


def _try_classifier(route: RouteSocket) -> None:
    from testbed.kernel import loss_classifier  # imports the fates, which the probe for tunnels does not need

    loss_classifier.try_classifier(route, 102)


def _cgroups(controller: str, meaning: str) -> Capability:
    name = f"cgroup v2 {controller}"
    if unavailable := cgroups.unavailable(frozenset({controller})):
        return Capability(name, False, unavailable.reason, meaning, unavailable.remedy)
    return Capability(name, True, "groups can use it", meaning, "")
