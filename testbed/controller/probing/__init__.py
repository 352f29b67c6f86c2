"""Probes: frames that measure what the directions of links do, and findings from them."""
