"""Capabilities of this machine for impaired links, probed in a scratch namespace, never derived from a version."""

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
from testbed.kernel.datapaths import Abilities
from testbed.kernel.netlink import RequestError, RouteSocket
from testbed.spec.layout import Impairment

_SEED = 0x0123_4567_89AB_CDEF
_ONE, _OTHER = 101, 102


@functools.cache
def abilities() -> Abilities:
    """Return this machine's abilities, probed once in a process."""
    why = loss_classifier.probe()
    found = in_child(_inside)
    return replace(found, bpf=not why, reasons={**found.reasons, "bpf": why} if why else found.reasons)


def _inside() -> Abilities:
    try:
        if userns.is_root():
            syscalls.unshare(syscalls.CLONE_NEWNET)
        else:
            userns.become_namespace_root()
        route = RouteSocket()
        here = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
        route.execute([netlink_messages.make_veth("a", _ONE, 1500, here, "b", _OTHER)])
        os.close(here)
    except (OSError, TestbedError, RequestError) as error:
        nowhere = f"no namespace to try it in: {error}"
        names = ("netem", "netem_seed", "netem_duplicate", "size_table", "tbf", "relay")
        return Abilities(relay=False, reasons=dict.fromkeys(names, nowhere))
    reasons: dict[str, str] = {}
    attempts: tuple[tuple[str, Callable[[RouteSocket], str]], ...] = (
        ("tbf", _try_tbf),
        ("size_table", _try_size_table),
        ("netem", _try_netem),
        ("netem_seed", _try_seed),
        ("netem_duplicate", _try_duplicate),
        ("relay", _try_relay),
    )
    for name, attempt in attempts:
        if name.startswith("netem_") and "netem" in reasons:
            reasons[name] = reasons["netem"]
        elif why := attempt(route):
            reasons[name] = why
    return Abilities(
        netem="netem" not in reasons,
        netem_seed="netem_seed" not in reasons,
        netem_duplicate="netem_duplicate" not in reasons,
        size_table="size_table" not in reasons,
        tbf="tbf" not in reasons,
        relay="relay" not in reasons,
        reasons=reasons,
    )


def _refused(route: RouteSocket, requests: list[bytes]) -> str:
    try:
        route.execute(requests)
    except RequestError as error:
        return error.refusals[0].reason
    return ""


def _try_tbf(route: RouteSocket) -> str:
    why = _refused(route, shapers.requests(_ONE, shapers.options_of(Impairment(rate=10**6), mtu=1500)))
    return f"this kernel has no tbf: {why}" if why else ""


def _try_size_table(route: RouteSocket) -> str:
    """Try a size table on pfifo, which every kernel with traffic control has."""
    sizes = qdiscs.size_table(lambda size: max(size, 60), 1500)
    request = qdiscs.request(_OTHER, "pfifo", 0x0003_0000, struct.pack("=I", 100), sizes=sizes)
    why = _refused(route, [request])
    if not why and not qdiscs.qdiscs(route)[_OTHER].sized:
        why = "it was not kept"
    return f"this kernel takes no table of frame sizes: {why}" if why else ""


def _try_netem(route: RouteSocket) -> str:
    why = _refused(route, [netem.request(_ONE, netem.options_of(Impairment(delay=1), mtu=1500))])
    return f"this kernel has no netem ({why})" if why else ""


def _try_seed(route: RouteSocket) -> str:
    """Try a seed and read it back: a kernel that does not know the attribute ignores it."""
    options = netem.options_of(Impairment(loss=0.1), mtu=1500, seed=_SEED)
    why = _refused(route, [netem.request(_ONE, options)])
    if not why and netem.decoded(qdiscs.qdiscs(route)[_ONE].options).seed != _SEED:
        why = "it was not kept (kernels from 6.6 on do)"
    return f"this kernel's netem takes no seed: {why}" if why else ""


def _try_duplicate(route: RouteSocket) -> str:
    requests = [
        netem.request(_ONE, netem.options_of(Impairment(duplicate=0.5), mtu=1500)),
        netem.request(_OTHER, netem.options_of(Impairment(delay=1, duplicate=0.5), mtu=1500)),
    ]
    why = _refused(route, requests)
    return f"this kernel's netem does not duplicate while another one exists: {why}" if why else ""


def _try_relay(route: RouteSocket) -> str:
    try:
        with socket.socket(socket.AF_PACKET, socket.SOCK_RAW | socket.SOCK_CLOEXEC, 0) as packet_socket:
            packet_socket.bind(("a", 0))
    except OSError as error:
        return f"packet sockets are unavailable: {error.strerror}"
    requests = [netlink_messages.add_clsact(_ONE), diversion.divert(_ONE, diversion.INGRESS, _OTHER, _ONE)]
    why = _refused(route, requests)
    return f"frames cannot be diverted to it: {why}" if why else ""
