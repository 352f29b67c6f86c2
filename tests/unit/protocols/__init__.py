"""Unit tests of EMP, AM-II, the mapper and MPI, without a network."""
