"""``testbed top``'s screen: what it shows is made of a snapshot alone, what keys do is decided without a terminal."""
