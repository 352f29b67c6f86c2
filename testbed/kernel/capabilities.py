"""Capabilities of this machine for impaired links, probed in a scratch namespace instead of derived from versions."""

from __future__ import annotations

import functools
import os
import socket
import struct
from collections.abc import Callable
from dataclasses import replace

from testbed.errors import TestbedError
from testbed.kernel import diversion, loss_classifier, netem, netlink_messages, qdiscs, shapers, syscalls, userns
from testbed.kernel.children import in_child
from testbed.kernel.datapaths import Capabilities
from testbed.kernel.netlink import RequestError, RouteSocket
from testbed.spec.layout import Impairment

_SEED = 0x0123_4567_89AB_CDEF
_INDEX, _PEER_INDEX = 101, 102


@functools.cache
def probe_capabilities() -> Capabilities:
    """Return this machine's capabilities. They are probed once per process."""
    reason = loss_classifier.probe()
    capabilities = in_child(_probe_in_namespace)
    return replace(
        capabilities,
        bpf=not reason,
        reasons={**capabilities.reasons, "bpf": reason} if reason else capabilities.reasons,
    )


def _probe_in_namespace() -> Capabilities:
    try:
        if userns.is_root():
            syscalls.unshare(syscalls.CLONE_NEWNET)
        else:
            userns.become_namespace_root()
        route = RouteSocket()
        namespace = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
        route.execute([netlink_messages.make_veth("a", _INDEX, 1500, namespace, "b", _PEER_INDEX)])
        os.close(namespace)
    except (OSError, TestbedError, RequestError) as error:
        no_namespace = f"no namespace for the probe: {error}"
        names = ("netem", "netem_seed", "netem_duplicate", "size_table", "tbf", "relay")
        return Capabilities(relay=False, reasons=dict.fromkeys(names, no_namespace))
    reasons: dict[str, str] = {}
    probes: tuple[tuple[str, Callable[[RouteSocket], str]], ...] = (
        ("tbf", _try_tbf),
        ("size_table", _try_size_table),
        ("netem", _try_netem),
        ("netem_seed", _try_seed),
        ("netem_duplicate", _try_duplicate),
        ("relay", _try_relay),
    )
    for name, probe in probes:
        if name.startswith("netem_") and "netem" in reasons:
            reasons[name] = reasons["netem"]
        elif reason := probe(route):
            reasons[name] = reason
    return Capabilities(
        netem="netem" not in reasons,
        netem_seed="netem_seed" not in reasons,
        netem_duplicate="netem_duplicate" not in reasons,
        size_table="size_table" not in reasons,
        tbf="tbf" not in reasons,
        relay="relay" not in reasons,
        reasons=reasons,
    )


def _refusal(route: RouteSocket, requests: list[bytes]) -> str:
    """Execute requests; return the kernel's reason for a rejection, or an empty string."""
    try:
        route.execute(requests)
    except RequestError as error:
        return error.refusals[0].reason
    return ""


def _try_tbf(route: RouteSocket) -> str:
    reason = _refusal(route, shapers.requests(_INDEX, shapers.options_of(Impairment(rate=10**6), mtu=1500)))
    return f"this kernel has no tbf: {reason}" if reason else ""


def _try_size_table(route: RouteSocket) -> str:
    """Set a size table on pfifo, which every kernel with traffic control has."""
    sizes = qdiscs.size_table(lambda size: max(size, 60), 1500)
    request = qdiscs.request(_PEER_INDEX, "pfifo", 0x0003_0000, struct.pack("=I", 100), sizes=sizes)
    reason = _refusal(route, [request])
    if not reason and not qdiscs.qdiscs(route)[_PEER_INDEX].has_size_table:
        reason = "the kernel did not keep it"
    return f"this kernel takes no size table for qdiscs: {reason}" if reason else ""


def _try_netem(route: RouteSocket) -> str:
    reason = _refusal(route, [netem.request(_INDEX, netem.options_of(Impairment(delay=1), mtu=1500))])
    return f"this kernel has no netem ({reason})" if reason else ""


def _try_seed(route: RouteSocket) -> str:
    """Set a seed and read it back: a kernel without this attribute ignores it."""
    options = netem.options_of(Impairment(loss=0.1), mtu=1500, seed=_SEED)
    reason = _refusal(route, [netem.request(_INDEX, options)])
    if not reason and netem.decode(qdiscs.qdiscs(route)[_INDEX].options).seed != _SEED:
        reason = "the kernel did not keep it (Linux 6.6 and later do)"
    return f"this kernel's netem takes no seed: {reason}" if reason else ""


def _try_duplicate(route: RouteSocket) -> str:
    """Set netem with duplication on both ends of a pair, which some kernels refuse."""
    requests = [
        netem.request(_INDEX, netem.options_of(Impairment(duplicate=0.5), mtu=1500)),
        netem.request(_PEER_INDEX, netem.options_of(Impairment(delay=1, duplicate=0.5), mtu=1500)),
    ]
    reason = _refusal(route, requests)
    return f"this kernel's netem does not duplicate while another one exists: {reason}" if reason else ""


def _try_relay(route: RouteSocket) -> str:
    try:
        with socket.socket(socket.AF_PACKET, socket.SOCK_RAW | socket.SOCK_CLOEXEC, 0) as packet_socket:
            packet_socket.bind(("a", 0))
    except OSError as error:
        return f"packet sockets are unavailable: {error.strerror}"
    requests = [netlink_messages.add_clsact(_INDEX), diversion.divert(_INDEX, diversion.INGRESS, _PEER_INDEX, _INDEX)]
    reason = _refusal(route, requests)
    return f"frames cannot be diverted to the relay: {reason}" if reason else ""
