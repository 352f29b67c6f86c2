"""SSAM: active messages of one ATM cell, in the host's library and its kernel's traps (von Eicken, Basu and Buch, 1995).

The network interface consists of two FIFOs; everything else is host software. The kernel's traps move cells between the
FIFOs and buffers shared with the process; the library implements the windows and calls the handlers.

- `cells`: the format of a message in a cell; `frames` defines it as a Scapy layer.
- `sba100`: the interface with its FIFOs, and the kernel's traps.
- `connection`: the sliding windows between two processes, without I/O. `states` has them as tables.
- `host`: the library, which programs call: the paper's interface.
- `am_library`, `am_endpoints`, `reply_tokens`: endpoints by AM-2's names, on top of `host` (`protocols.active_messages`);
  `handler_addresses` has their format, `bulk_cells` sends bulk messages a cell at a time.
- `settings`, `counters`, `plug`, `protocol`: the protocol's interface to the testbed.
"""
