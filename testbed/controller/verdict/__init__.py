"""Verdict on a span of time: losses and lateness of the emulator and the machine, judged by one table of thresholds."""
