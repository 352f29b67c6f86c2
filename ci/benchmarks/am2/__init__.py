"""``ci/bench am2``: how fast AM-II is on inline NICs, beside EMP and kernel TCP between the same two nodes."""
