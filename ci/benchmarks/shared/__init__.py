"""Shared NICs: what is measured of them."""
