"""Scenarios beside a run: faults at given times and places, carried out in the simulation and in namespaces."""
