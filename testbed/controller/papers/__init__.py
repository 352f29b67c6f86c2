"""Reproduction of papers: their runs are points, measured side by side and kept in a folder, and compared."""
