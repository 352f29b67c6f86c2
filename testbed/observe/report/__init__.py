"""The report of runs: one HTML file that holds all it shows, made from their folders and nothing else."""
