"""Time: what happens when, on a clock that is given. Pure: it touches neither Linux nor a clock of its own."""
