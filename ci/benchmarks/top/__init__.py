"""``ci/bench top``: CPU time of the live screen."""
