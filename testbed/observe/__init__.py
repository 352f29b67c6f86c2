"""What can be seen of a cluster and of a run: captures, the runs that are recorded, the papers they are held against."""
