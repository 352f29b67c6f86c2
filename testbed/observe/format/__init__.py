"""Formatting of frames, events and quantities as text."""
