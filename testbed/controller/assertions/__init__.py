"""Statistical assertions on a link: they fail when chance cannot explain the observation, and refuse samples in which the
deviation that they look for could hide.

- `shares`: loss, duplicates, order, reachability, of a sample that is complete;
- `sample_quantiles`: delay, jitter, rate, of a sample that is complete;
- `sequential`: the same, of samples that come one by one, until the answer is sure.

A sound link fails such a test once in a million runs (`LEVEL`); default: one that is off by `off`, a fifth, fails it in
99 of 100 or more.
"""
