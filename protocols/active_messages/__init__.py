"""The programming interface of active messages, common to all protocols that implement it.

- `am_interface`: library, bundles, endpoints and tokens, by AM-2's names; a host library that implements them runs
  every workload on active messages.
- `endpoint_names`, `am_errors`: names of endpoints; errors, and messages returned as undeliverable.
- `observer`: what a host library reports to an observer, such as a history.
- `split_c`: Split-C's operations on that interface.
"""
