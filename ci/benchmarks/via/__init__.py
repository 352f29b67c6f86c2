"""Benchmarks of VIA and of MPI on it, compared with EMP."""
