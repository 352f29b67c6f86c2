"""Shared NICs: a process for each NIC that serves several host processes through memory that it shares with each of them."""
