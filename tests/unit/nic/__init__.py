"""Unit tests of the executors that run a firmware."""
