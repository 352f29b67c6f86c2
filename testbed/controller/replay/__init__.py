"""Failed runs again, with the same fates, or with the few that are enough to fail."""
