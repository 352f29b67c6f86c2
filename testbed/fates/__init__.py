"""Fates of frames, by chance or by rule, as a sans-IO model.

- `stage`: decides on the frames of one direction of a link.
- `fate_hash`, `flows`: random draws for the n-th frame of a flow; classification of frames into flows.
- `loss_models`, `jitter`, `text_files`: models of impairments, and the files that they read.
- `header_fields`, `headers`: positions of header fields in a frame.
- `tokens`, `expressions`, `conditions`, `rules`: injected faults: "drop tcp.dport == 5001 and nth(3)".
- `field_changes`, `checksums`: changes of fields and bits by rules, and recomputed checks.
- `fate_counters`: names and storage of the counts of frames.
- `records`: a fate, the log of fates, and its replay.

The modules use no sockets, clocks, files or random sources. Time is an argument, in integer nanoseconds.
"""
