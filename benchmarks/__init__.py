"""Benchmarks: one command a subject, the machine's own limit beside each number."""
