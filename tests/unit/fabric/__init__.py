"""Unit tests of the network models."""
