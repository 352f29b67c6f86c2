"""Measure, check and judge a cluster's links: verdicts, probes, checkers, and the runs that they belong to."""
