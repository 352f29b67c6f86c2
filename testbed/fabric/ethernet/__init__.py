"""Ethernet as a sans-IO model: links with a queue at their start, and switches that learn or have tables.

- `channel`: one direction of a link; `ethernet_switch`: a switch's ports and table; `network`: the network.
- `fabric`: the registered fabric.
"""
