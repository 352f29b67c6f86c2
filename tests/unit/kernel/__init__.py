"""Unit tests of the interface to the Linux kernel."""
