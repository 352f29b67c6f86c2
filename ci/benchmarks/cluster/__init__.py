"""``ci/bench cluster``: bring-up, tear-down, commands and idle nodes, beside a floor in C."""
