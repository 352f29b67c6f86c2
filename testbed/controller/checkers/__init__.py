"""Checkers of histories: sends, receives and notifications of each application. See `promises`."""
