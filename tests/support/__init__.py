"""What several tests need: servers, a proxy that misbehaves, waiting, the check of key lifetimes."""

from pathlib import Path

PROJECT = Path(__file__).resolve().parents[2]
"""The project's directory: tests run somewhere else."""
