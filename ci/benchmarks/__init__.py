"""The benchmarks behind ``ci/bench``. They print and store rows; no test depends on a time."""
