"""VIA, the Virtual Interface Architecture: NICs with virtual interfaces, connections, registered memory and RDMA.

Source: Compaq, Intel, Microsoft, "Virtual Interface Architecture Specification", version 1.0, 1997. M-VIA, the provider
of the LAM/MPI paper (Bertozzi, Panella, Reggiani), offers unreliable delivery only; `settings` selects the level.
"""
