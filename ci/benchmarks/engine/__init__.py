"""``ci/bench engine``: what an event costs, beside SimPy."""
