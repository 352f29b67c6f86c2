"""Tests that need a kernel with netem and cgroup v2; ci/vm boots one."""
