"""Statistical assertions on a link. They fail if chance cannot explain the observation, and refuse samples that are too
small to detect a deviation.

- `shares`: loss, duplicates, order and reachability, from a complete sample;
- `sample_quantiles`: delay, jitter and rate, from a complete sample;
- `sequential`: all of these quantities, from samples one by one until the test decides.

A correct link fails such a test once in a million runs (`LEVEL`). A link with the relative deviation `off`, by default a
fifth, fails it in at least 99 of 100 runs.
"""
