"""SSAM: active messages of one ATM cell, in the host's library and its kernel's traps (von Eicken, Basu and Buch, 1995).

The network interface is two FIFOs. Everything else is software of the host: the kernel's traps move cells between the
FIFOs and buffers that it shares with the process, the library runs the windows and the handlers.

- `cells`: the format of a message in a cell; `frames` defines it as a Scapy layer.
- `sba100`: the interface with its FIFOs, and the kernel's traps.
- `connection`: the sliding windows between two processes, without I/O. `states` has them as tables.
- `host`: the library, which programs call: the paper's interface.
- `am_library`, `am_endpoints`, `reply_tokens`: on it, endpoints by AM-2's names (`protocols.active_messages`);
  `handler_addresses` has their format, `bulk_cells` sends bulk messages a cell at a time.
- `settings`, `counters`, `plug`, `protocol`: what a testbed needs of a protocol.
"""
