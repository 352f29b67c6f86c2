"""Unit tests of this suite's own parts and of ci/house.py."""
