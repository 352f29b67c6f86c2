"""``ci/bench runs``: time to the first message, cost of the controller, and leaks."""
