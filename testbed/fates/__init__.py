"""Fates of frames, by chance or by rule, as a sans-IO model.

- `stage`: decides on the frames of one direction of a link.
- `fate_hash`, `flows`: the fate of the n-th frame of a flow.
- `loss_models`, `jitter`: impairments.
- `header_fields`, `headers`: positions of header fields in a frame.
- `conditions`, `expressions`, `rules`: injected faults: "drop tcp.dport == 5001 and nth(3)".
- `field_changes`, `checksums`: changes of fields and bits by rules, and recomputed checks.
- `records`: a fate, the log of fates, and its replay.

The modules use no sockets, clocks, files or random sources. Time is an argument, in integer nanoseconds.
"""
