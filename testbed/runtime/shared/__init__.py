"""Shared NICs: an agent process for each NIC serves several host processes through memory that it shares with each of
them."""
