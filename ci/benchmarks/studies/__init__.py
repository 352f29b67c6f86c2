"""``ci/bench study``: many runs in parallel."""
