"""AM-II: active messages on virtual networks, on Myrinet.

B. Chun, A. Mainwaring, D. Culler, "Virtual Network Transport Protocols for Myrinet", IEEE Micro 18(1):53-63, 1998; the
sections named in this package are that paper's. The programming interface is AM-2's: A. Mainwaring, D. Culler, "Active
Message Applications Programming Interface and Communication Subsystem Organization", UCB//CSD-96-918, 1996.
"""
