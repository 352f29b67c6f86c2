"""Scenarios of a run: faults at given times and places, in the simulation and in namespaces."""
