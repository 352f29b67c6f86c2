"""From the description of a cluster to netlink requests: datapath selection, wiring, the plan, its execution."""
