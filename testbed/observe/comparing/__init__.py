"""Whether one run is better or worse than another, or than a paper: ratios of measures, with what chance leaves open."""
