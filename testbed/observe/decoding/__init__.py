"""Decoding of captures: reading, filtering, and output by frame or by message."""
