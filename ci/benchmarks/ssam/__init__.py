"""``ci/bench ssam``: SSAM compared with EMP, and cells compared with frames."""
