"""SSAM: active messages of one ATM cell, by the host's library and the kernel's traps (von Eicken, Basu and Buch,
1995).

The network interface consists of two FIFOs; everything else is host software. The kernel's traps move cells between the
FIFOs and buffers shared with the process; the library implements the windows and calls the handlers.

- `cells`: the format of a message in a cell; `frames` defines it as a Scapy layer.
- `sba100`: the interface with its FIFOs, and the kernel's traps.
- `connection`: the sliding windows between two processes, without I/O. `states` has the state tables.
- `host`: the library that programs call, with the paper's interface.
- `am_library`, `am_endpoints`, `reply_tokens`: endpoints by AM-2's names, on top of `host`
  (`protocols.active_messages`); `handler_addresses` has the format of their messages, `bulk_cells` sends bulk messages
  a cell at a time.
- `settings`, `counters`, `profile`, `plug`, `protocol`: the protocol's interface to the testbed.
"""
