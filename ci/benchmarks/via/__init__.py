"""Benchmarks of VIA and of MPI on it, beside EMP."""
