"""``ci/bench shared``: costs of shared NICs, and fairness between host processes."""
