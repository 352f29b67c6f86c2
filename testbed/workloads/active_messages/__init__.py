"""Workloads on active messages, and those on AM-II's alone (`bursts`, `networks`): measurements of the papers, and random
requests."""
