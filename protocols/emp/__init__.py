"""EMP: zero-copy, OS-bypass, NIC-driven message passing on Gigabit Ethernet.

P. Shivam, P. Wyckoff, D. Panda, "EMP: Zero-copy OS-bypass NIC-driven Gigabit Ethernet Message Passing", SC2001; the
sections named in this package are that paper's.
"""
