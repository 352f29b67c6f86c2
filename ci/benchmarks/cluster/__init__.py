"""``ci/bench cluster``: bring-up, tear-down, commands and idle nodes, compared with a lower bound in C."""
