"""``ci/bench decode``: how fast captures are decoded."""
