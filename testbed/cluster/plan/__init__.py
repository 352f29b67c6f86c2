"""From a resolved layout to netlink requests: datapath selection, wiring, planning and execution."""
