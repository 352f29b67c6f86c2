"""``ci/bench links``: what impaired links cost, and what unimpaired ones do not."""
