"""Scenarios beside a run: what goes wrong, when and where, carried out in the simulation and in namespaces."""
