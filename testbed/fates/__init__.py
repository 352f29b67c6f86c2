"""Fates of frames, by chance or by rule, as a sans-IO model.

- `stage`: decides on the frames of one direction of a link: frame in, verdict out.
- `fate_hash`, `flows`: the fate of the n-th frame of a flow.
- `loss_models`, `corruption`, `jitter`: the impairments, one each.
- `header_fields`, `headers`: positions of header fields in a frame.
- `conditions`, `expressions`, `rules`: injected faults: "drop tcp.dport == 5001 and nth(3)".
- `field_changes`, `checksums`: fields that a rule sets, bits that it flips, checks that it mends.
- `records`: a fate, the log of fates, and its replay.

No module has a socket, a clock, a file or a random source. Time is an argument, in integer nanoseconds.
"""
