"""Observation of clusters and runs: captures, recorded runs, and the published papers they are compared with."""
