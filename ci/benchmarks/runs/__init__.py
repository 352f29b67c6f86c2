"""``ci/bench runs``: how soon the first message comes, what the controller costs, and whether anything leaks."""
