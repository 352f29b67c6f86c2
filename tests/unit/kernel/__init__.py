"""Unit tests of what talks to the Linux kernel."""
