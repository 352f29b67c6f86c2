"""Everything that touches Linux: namespaces, netlink, mounts, processes, cgroups, and probing what the kernel can do."""
