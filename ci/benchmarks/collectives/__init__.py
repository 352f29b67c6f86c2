"""Benchmarks of MPI's collective calls over every protocol, beside Open MPI."""
