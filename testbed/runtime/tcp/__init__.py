"""MPI's point-to-point over the kernel's TCP: the base line that protocols on NICs are compared with."""
