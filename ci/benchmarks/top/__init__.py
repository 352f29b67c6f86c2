"""``ci/bench top``: what the live screen costs."""
