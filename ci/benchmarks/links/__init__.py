"""``ci/bench links``: the cost of impaired links, and that unimpaired links have none."""
