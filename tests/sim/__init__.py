"""Tests of complete clusters in the simulation."""
