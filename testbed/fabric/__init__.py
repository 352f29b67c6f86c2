"""Networks as sans-IO models: lines, directions of links, and networks of switches.

- `line`: a queue, a rate, a delay; `direction`: one direction of a link, a stage of fates followed by a line.
- `wire_time`, `delivery_trace`: the time for which a frame occupies a line.
- `interface`: interface of networks to their drivers, the simulation and the relay; `entrance`: start of a channel.
- `ethernet`: links with queues, and switches that learn or have tables; `atm`: switches of cells.
- `myrinet`: source-routed switches; a waiting frame blocks the links that it occupies.
- `event_queue`: events of a network or of a loop; `stop_go`: flow control between a NIC and the emulated network.
- `pcapng`: encoding of capture files.

The modules use no sockets, clocks, files or random sources. Time is an argument, in integer nanoseconds.
"""
