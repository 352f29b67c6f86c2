"""Wireshark dissector in Lua, generated from the Scapy layers of all registered protocols."""
