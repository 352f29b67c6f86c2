"""A dissector for Wireshark, in Lua, made of the Scapy layers of all registered protocols."""
