"""Runs of workloads and of commands: their options, targets, execution and folders."""
