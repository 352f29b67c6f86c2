"""Screen of ``testbed top``: drawn from a snapshot alone; keys are interpreted without a terminal."""
