"""The functions of `native_hash.c`, which are those of `interpreted_hash` in C."""

from testbed.fates.interpreted_hash import chain as chain
from testbed.fates.interpreted_hash import draw as draw
