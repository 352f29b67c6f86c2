"""Captures decoded: read, filtered, told frame by frame, or as what became of each message."""
