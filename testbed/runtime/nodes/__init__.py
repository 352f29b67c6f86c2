"""Node processes: each has one node's NIC, runs its firmware inline, and the node's host program beside it."""
