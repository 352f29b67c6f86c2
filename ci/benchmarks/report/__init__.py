"""Reports of big runs."""
