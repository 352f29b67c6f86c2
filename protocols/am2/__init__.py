"""AM-II: active messages on virtual networks, on Myrinet.

B. Chun, A. Mainwaring, D. Culler, "Virtual Network Transport Protocols for Myrinet", IEEE Micro 18(1):53-63, 1998; the
sections named in this package are that paper's. The programming interface is AM-2's: A. Mainwaring, D. Culler, "Active
Message Applications Programming Interface and Communication Subsystem Organization", UCB//CSD-96-918, 1996.

- `host/`: the host library: bundles, endpoints, handlers (`library` has an example); and the segment driver.
- `page`: the state of an endpoint that host and NIC share. `nic_memory`: the parts of NIC memory that the host's kernel
  writes. `shared_frames`, `split_driver`: a NIC that several host processes share.
- `firmware`: dispatch of frames, doorbells and deadlines; `sender` and `receiver` are its halves, which use the
  channels to each of the `peers`; `nic_endpoint` has the NIC's state of an endpoint; `residency` assigns endpoint
  frames; `endpoint_scheduler` schedules messages.
- `frames`: the frame definitions, from which `codec` is generated; `transport` assembles frames from precomputed parts,
  and implements the channels.
- `protocols.myrinet.mapper`: finds the routes, on source-routed networks.
"""
