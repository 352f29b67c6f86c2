"""Shared NICs: an agent process for each NIC, which serves several host processes through memory shared with each."""
