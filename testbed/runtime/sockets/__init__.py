"""MPI point-to-point over the kernel's sockets, TCP and UDP: the baselines with which protocols on NICs are compared."""
