"""Everything that touches Linux: namespaces, netlink, mounts, processes, cgroups, and probing what the kernel can do."""

from testbed.kernel.lean_imports import import_leanly

import_leanly("pyroute2")
