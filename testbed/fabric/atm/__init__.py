"""ATM as a sans-IO model: cells, switches that forward them by circuit, and output buffers that lose them.

- `network`: switches, links, and the cells on them.
- `channel`: one direction of a link, its buffer and its rate.
- `fabric`: the registration, and the circuits of a cluster.
"""
