"""ATM as a sans-IO model: cells, switches that forward them by circuit, and output buffers that lose them.

- `network`: switches, links, and the cells on them.
- `channel`: one direction of a link, with its buffer and its rate.
- `fabric`: the registered fabric, and the tables of a cluster's switches.
"""
