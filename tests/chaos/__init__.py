"""Chaos: workers and servers are killed, stopped and cut off under load; at the end everything is counted.

`make chaos SECONDS=120 SEED=7`, or `python -m tests.chaos --seconds 120 --seed 7`.
"""
