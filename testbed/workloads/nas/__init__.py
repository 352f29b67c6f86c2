"""NAS Parallel Benchmarks: the kernels IS, CG, MG and FT, verified, and the messages that they exchange.

Bailey and others, "The NAS Parallel Benchmarks", RNR-94-007, 1994 (algorithms); Bailey and others, "The NAS Parallel
Benchmarks 2.0", NAS-95-020, 1995 (their distribution over ranks); NPB 3.4 (class W, values of verification).
"""
