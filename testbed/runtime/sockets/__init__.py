"""MPI point-to-point over kernel sockets, TCP and UDP: the baselines for protocols on NICs."""
