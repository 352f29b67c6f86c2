"""Workloads on active messages: measurements of the papers, and random requests. `bursts` and `networks` run on AM-II only,
`cell_costs` on SSAM only."""
