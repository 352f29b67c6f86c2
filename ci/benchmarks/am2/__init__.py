"""``ci/bench am2``: AM-II on inline NICs, compared with EMP and kernel TCP between the same nodes."""
