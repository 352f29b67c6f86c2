"""``ci/bench engine``: the cost of an event, compared with SimPy."""
