"""The life of a cluster: plan, bring up, converge, run programs, take down, collect garbage; its state and its
services."""
