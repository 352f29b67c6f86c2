"""Probe frames that measure the directions of links, and the findings from them."""
