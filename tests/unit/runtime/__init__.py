"""Unit tests of node processes, shared NICs, the relay and sockets."""
