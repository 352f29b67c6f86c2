"""Workloads on AM-II's own host library: endpoints, virtual networks, and the paper's measurements of them."""
