"""AM-II's host library: AM-2's bundles, endpoints, handlers and translations; and the segment driver, which is the part
of the host's kernel."""
