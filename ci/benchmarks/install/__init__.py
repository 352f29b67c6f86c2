"""The package: the benchmark of what an install costs."""
