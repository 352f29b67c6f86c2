"""Unit tests of the pytest plug-in."""
