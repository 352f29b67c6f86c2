"""ATM cells: the part common to all protocols that send through its switches (ITU-T I.361, I.432.1).

An Ethernet frame carries cells of 53 bytes behind its header; a network takes and delivers one cell a frame. A switch
reads a cell's circuit (VPI and VCI) alone.

- `frames`: the definition, as a Scapy layer.
- `cell`: headers, their check, and the circuits of a cluster, without Scapy.
- `fields`: field definitions for rules and captures.
"""
