"""Replays of failed runs, with the recorded fates or with a minimal set of them."""
