"""``ci/bench decode``: decoding rate of captures."""
