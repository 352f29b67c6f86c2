"""Node processes: each runs one node's host program, and the firmware of the node's NIC inline."""
