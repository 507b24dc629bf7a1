"""Benchmarks: `make bench`, or `python -m benchmarks CASE ...`. They print; they never fail a build."""
