"""``ci/bench emp``: how fast EMP is on inline NICs, beside raw packet sockets and kernel TCP between the same two nodes."""
