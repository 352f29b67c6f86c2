"""AM-II's host library: AM-2's bundles, endpoints, handlers and translations, and the kernel's part, the segment
driver."""
