"""A cluster's life: plan, bring up, converge, run programs in it, tear down, collect garbage; its state and its keeper."""
