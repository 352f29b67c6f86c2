"""Workloads on AM-II's own host library: endpoints, virtual networks, and what the paper has measured of them."""
