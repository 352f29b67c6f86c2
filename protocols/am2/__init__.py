"""AM-II: active messages on virtual networks, on Myrinet.

B. Chun, A. Mainwaring, D. Culler, "Virtual Network Transport Protocols for Myrinet", IEEE Micro 18(1):53-63, 1998; the
sections named in this package are that paper's. The programming interface is AM-2's: A. Mainwaring, D. Culler, "Active
Message Applications Programming Interface and Communication Subsystem Organization", UCB//CSD-96-918, 1996.

- `host/`: what a program has: bundles, endpoints, handlers (`library` shows how it begins); and the segment driver.
- `page`: what host and NIC share of an endpoint. `nic_memory`: what the host's kernel writes in the NIC.
- `firmware`: what happens to a frame, a doorbell, a deadline; `sender` and `receiver` are its halves, over the `channels` to
  each of the `peers`; `endpoint_frames` has the NIC's view of endpoints, `turns` decides whose packet is next.
- `frames`, of which `codec` is made; `packets` puts frames together from what is known before.
- `mapper/`: finds the routes, on networks that have them.
"""
