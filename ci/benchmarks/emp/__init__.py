"""``ci/bench emp``: EMP on inline NICs, compared with packet sockets and kernel TCP between the same nodes."""
