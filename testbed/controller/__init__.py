"""Whether what a cluster's links do is what was asked of them: measuring, judging, verdicts."""
