"""Reproduction of papers: points, which are runs of a paper, their folder, and the comparison with the paper's values."""
