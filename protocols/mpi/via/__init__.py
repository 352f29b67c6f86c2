"""MPI's device on VIA: the design of Bertozzi, Panella, Reggiani, "Design of a VIA based communication protocol for
LAM/MPI Suite"."""
