"""Clusters on this machine: plan, bring up, converge, run programs, take down, collect garbage; their state and
services."""
