"""Open-MX: the MX interface on any Ethernet, with a driver in the kernel and matching in the library.

Goglin, "NIC-assisted Cache-Efficient Receive Stack for Message Passing over Ethernet", Euro-Par 2009, inria-00379168.
Frames, constants and names of counters are those of Open-MX's sources, as described in `docs/protocols/openmx.md`.
"""
