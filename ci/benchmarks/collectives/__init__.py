"""Benchmarks of MPI's collective calls over every protocol, compared with Open MPI."""
