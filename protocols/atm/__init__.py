"""ATM cells: the format common to all protocols on ATM switches (ITU-T I.361, I.432.1).

An Ethernet frame carries cells of 53 bytes after its header; a network takes and delivers one cell per frame. A switch
reads only a cell's circuit (VPI and VCI).

- `frames`: the definition of the format, as a Scapy layer.
- `cell`: headers, their check, and the circuits of a cluster, without Scapy.
- `fields`: field definitions for rules and captures.
"""
