"""The network as a sans-IO model: what one direction of a link does to frames, and why.

- `direction`: the model itself: offer, poll, deadline, change.
- `hashing`, `flows`, `fates`: which fate the n-th frame of a flow has, its log and its replay.
- `losses`, `corruption`, `jitter`, `serialising`, `delivery_trace`: the impairments, one each.
- `fields`, `headers`: where a field of a header stands in a frame.
- `conditions`, `expressions`, `rules`: faults on purpose: "drop tcp.dport == 5001 and nth(3)".
- `myrinet`: a network of source-routed switches, where a frame that waits holds the links behind it.

Nothing here knows a socket, a clock, a file or a source of chance. Time is an argument, in integer nanoseconds.
"""
