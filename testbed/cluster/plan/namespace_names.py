"""Names of namespaces, interfaces and processes of a cluster.

A cluster has one namespace per node, ``CLUSTER.NODE``, and a wire namespace, ``CLUSTER``, which contains the switches and
the peers of the nodes' interfaces. In the code, a namespace's *key* is the node's name, or "" for the wire namespace.
"""

from __future__ import annotations

import re

from testbed.errors import DescriptionError, Problem
from testbed.spec.names import NAME_PATTERN

WIRE = ""
"""Key of the wire namespace."""

# Names of processes, of at most 15 characters
HOLDER = "testbed-holder"
SUPERVISOR = "testbed-superv"
LOAD = "testbed-load"

_MAX_LENGTH = 15  # IFNAMSIZ without the NUL
_RESERVED = {"lo", "all", "default"}  # the loopback interface, and directories of /proc/sys/net/ipv4/conf


def namespace(cluster: str, key: str) -> str:
    """Return the name of a cluster's namespace."""
    return f"{cluster}.{key}" if key else cluster


def cluster_of(namespace_name: str) -> str:
    """Return the cluster to which a namespace belongs; cluster names contain no dot."""
    return namespace_name.partition(".")[0]


def key_of(namespace_name: str) -> str:
    """Return the key of a namespace in its cluster."""
    return namespace_name.partition(".")[2]


def switch(name: str) -> str:
    """Return the name of a switch's bridge in the wire namespace."""
    return _shorten(name) if name in _RESERVED else _bounded(name)


def trunk_end(switch: str, peer: str, number: int) -> str:
    """Return the name of the interface at `switch` of the number-th link between it and the switch `peer`."""
    return far_end(switch, peer if number == 1 else f"{peer}.{number}")


def far_end(owner: str, port: str) -> str:
    """Return the name of the veth peer, in the wire namespace, of a node's NIC."""
    return _bounded(f"{owner}.{port}")


def tunnel(owner: str, port: str) -> str:
    """Return the name of the tunnel to a link end on another machine; like a patch's name, it has a '+'."""
    return _bounded(f"tun+{owner}.{port}")


def patch(device: str) -> tuple[str, str]:
    """Return the names of the two ends of a patch beside `device` (see `veth_wiring`): the plugged end and the free end.

    The plugged end is a port of the switch on a spliced link; on a diverted link, neither end is plugged in. Only the
    names of patches, stages and tunnels have a '+' before their first dot.
    """
    return _bounded(f"port+{device}"), _bounded(f"free+{device}")


def stage(device: str) -> tuple[str, str]:
    """Return the names of the two interfaces of a link's stage, on which its qdiscs are: that of forward, that of backward.

    device: the interface after which a patch of that link would be named.
    """
    return _bounded(f"fwd+{device}"), _bounded(f"bwd+{device}")


def _bounded(name: str) -> str:
    return name if len(name) <= _MAX_LENGTH else _shorten(name)


def _shorten(name: str) -> str:
    """Shorten a name to its first four characters and a hash. Only shortened names contain '~'."""
    return f"{name[:4]}~{_digest(name).hex()}"


def switch_mac(name: str) -> str:
    """Return a locally administered MAC address for a bridge. Without a fixed one, the kernel would change it with the
    ports."""
    return f"06:{_digest(name).hex(':')}"


def _digest(name: str) -> bytes:
    from hashlib import blake2b  # loads OpenSSL, which most commands do not need

    return blake2b(name.encode(), digest_size=5).digest()


def check_cluster(name: str) -> str:
    """Return a cluster's name if it is valid; raise DescriptionError otherwise. Names from users become part of paths, so
    check them first."""
    if not re.fullmatch(NAME_PATTERN, name) or name.endswith("\n"):
        shown = repr(name if len(name) <= 60 else f"{name[:57]}...")
        expected = "1 to 63 letters, digits, '-' and '_', the first a letter or digit"
        raise DescriptionError("the cluster's name", [Problem("", shown, expected)])
    return name
