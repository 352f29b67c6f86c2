"""Checkers of a run's history: what each application sent, received and was notified of. See `promises`."""
