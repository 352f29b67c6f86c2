"""A module in the directory of a script."""


def left_and_right(comm):
    return (comm.rank - 1) % comm.size, (comm.rank + 1) % comm.size
