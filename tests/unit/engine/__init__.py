"""Unit tests of clocks, the event loop, tasks and servers."""
