"""The programming interface of active messages, common to all protocols that implement them.

- `am_interface`: library, bundles, endpoints and tokens, by AM-2's names; every workload on active messages runs on a
  host library that implements them.
- `endpoint_names`, `am_errors`: names of endpoints; errors, and messages returned as undeliverable.
- `observer`: what a host library reports to an observer, such as a history.
- `split_c`: Split-C's operations on that interface.
"""
