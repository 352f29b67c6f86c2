"""Frames, events and quantities as text."""
