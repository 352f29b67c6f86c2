"""MPI's point-to-point over the kernel's sockets, TCP and UDP: the base lines that protocols on NICs are compared with."""
