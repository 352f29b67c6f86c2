"""Comparison of a run with another run or with a paper: ratios of measures and their confidence intervals."""
