"""Networks as sans-IO models: lines, directions of links, and networks of switches.

- `line`: a queue, a rate, a delay; `direction`: one direction of a link, fates in front of a line.
- `wire_time`, `delivery_trace`: the time for which a frame occupies a line.
- `interface`: what a network is for its drivers, the simulation and the relay; `entrance`: where frames enter a channel.
- `ethernet`: links with queues, and switches that learn or have tables; `atm`: switches of cells.
- `myrinet`: a network of source-routed switches, where a waiting frame blocks the links that it occupies.
- `pcapng`: encoding of capture files.

The modules use no sockets, clocks, files or random sources. Time is an argument, in integer nanoseconds.
"""
