"""``ci/bench plugin``: what the pytest plug-in costs."""
