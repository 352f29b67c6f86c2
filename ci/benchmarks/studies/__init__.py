"""Studies: the benchmark of many runs side by side."""
