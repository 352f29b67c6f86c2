"""Modules that the benchmarks share: sessions, rows, tables, targets, contenders, processes and traffic."""
