"""Unit tests of captures, decoding, events and formats."""
