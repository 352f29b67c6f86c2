"""``ci/bench openmx``: Open-MX compared with EMP, and its receive policies compared with each other."""
