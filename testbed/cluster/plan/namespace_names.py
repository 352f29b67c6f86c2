"""Names of namespaces and interfaces in the kernel.

A cluster has one namespace per node, ``CLUSTER.NODE``, and a wire namespace, ``CLUSTER``, with its switches and the far
ends of its cables. In the code, a namespace's key is the node's name, or "" for the wire namespace.
"""

from __future__ import annotations

import re

from testbed.errors import DescriptionError, Problem
from testbed.spec.names import NAME_PATTERN

WIRE = ""
HOLDER = "testbed-holder"
SUPERVISOR = "testbed-superv"
LOAD = "testbed-load"
_LONGEST = 15  # IFNAMSIZ without the NUL
_TAKEN = {"lo", "all", "default"}


def namespace(cluster: str, key: str) -> str:
    return f"{cluster}.{key}" if key else cluster


def cluster_of(namespace_name: str) -> str:
    """The cluster that a namespace's name belongs to; cluster names contain no dot."""
    return namespace_name.partition(".")[0]


def key_of(namespace_name: str) -> str:
    """The key of a namespace in its cluster."""
    return namespace_name.partition(".")[2]


def switch(name: str) -> str:
    """The interface of a switch in the wire namespace."""
    return _short(name) if name in _TAKEN else _fitting(name)


def trunk_end(switch: str, other: str, number: int) -> str:
    """The end at `switch` of its number-th cable to another switch."""
    return far_end(switch, other if number == 1 else f"{other}.{number}")


def far_end(owner: str, port: str) -> str:
    """The wire-side interface of the cable of a node's NIC."""
    return _fitting(f"{owner}.{port}")


def tunnel(owner: str, port: str) -> str:
    """The interface that stands for an end on another machine; its name has a '+' as patches have."""
    return _fitting(f"tun+{owner}.{port}")


def patch(device: str) -> tuple[str, str]:
    """The two ends of the patch of `device`: the one plugged in at the switch, and the free one.

    If neither is plugged in, the relay listens on both. Only the names of patches, stages and tunnels have a '+' before
    their first dot.
    """
    return _fitting(f"port+{device}"), _fitting(f"free+{device}")


def stage(device: str) -> tuple[str, str]:
    """The interfaces of a link's stage, for forward and backward, which hold the kernel's queueing disciplines.

    device: the one after which a patch of that link would be named.
    """
    return _fitting(f"fwd+{device}"), _fitting(f"bwd+{device}")


def _fitting(name: str) -> str:
    return name if len(name) <= _LONGEST else _short(name)


def _short(name: str) -> str:
    """A name within the length limit: its readable beginning and a hash. No other name of ours contains '~'."""
    return f"{name[:4]}~{_digest(name).hex()}"


def switch_mac(name: str) -> str:
    """A fixed, locally administered MAC for a switch, so that plugging in a port does not change the bridge's."""
    return f"06:{_digest(name).hex(':')}"


def _digest(name: str) -> bytes:
    from hashlib import blake2b  # of OpenSSL: to look at a cluster it need not be loaded

    return blake2b(name.encode(), digest_size=5).digest()


def check_cluster(name: str) -> str:
    """The name, if it is valid; otherwise DescriptionError. It becomes part of paths, so it must always be checked."""
    if not re.fullmatch(NAME_PATTERN, name) or name.endswith("\n"):
        shown = repr(name if len(name) <= 60 else f"{name[:57]}...")
        expected = "1 to 63 letters, digits, '-' and '_', the first a letter or digit"
        raise DescriptionError("the cluster's name", [Problem("", shown, expected)])
    return name
