"""Comparison of runs with other runs and with papers: ratios of measures with confidence intervals, scores of
reproductions."""
