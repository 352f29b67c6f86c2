"""Event loop, tasks and resources on a clock that is passed in. Pure: no access to Linux, and no clock of its own."""
