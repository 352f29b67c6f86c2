"""Event loop, tasks and resources on a clock that is passed in. The package is pure: it makes no system calls."""
