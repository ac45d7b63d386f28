"""Benchmarks: every figure the documentation quotes comes from here."""
