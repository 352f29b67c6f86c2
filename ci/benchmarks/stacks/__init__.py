"""``ci/bench stacks``: one ping-pong on several MPI stacks."""
