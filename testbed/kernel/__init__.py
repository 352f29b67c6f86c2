"""All access to Linux: namespaces, netlink, mounts, processes, cgroups, packet sockets, BPF, and capability probes."""

from testbed.kernel.deferred_init import defer_init

defer_init("pyroute2")
