"""The verdict on a span of time: what the emulator lost or did late, against one table of thresholds."""
