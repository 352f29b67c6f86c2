"""All access to Linux: namespaces, netlink, mounts, processes, cgroups, packet sockets, BPF, and capability probes."""

from testbed.kernel.lean_imports import import_leanly

import_leanly("pyroute2")
