"""``ci/bench plugin``: the overhead of the pytest plug-in."""
