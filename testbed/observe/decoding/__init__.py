"""Decoding of captures: reading, filtering, and output frame by frame or message by message."""
