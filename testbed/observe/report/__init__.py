"""Report of runs: one self-contained HTML file, made from their folders only."""
