"""Checkers over the history of a run: what each application sent, received and was told. See `promises`."""
