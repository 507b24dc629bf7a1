"""Bulk jobs: what an operator does to many tasks at once, in bounded steps that any process may take up again."""

from dtq.bulk.jobs import BulkJobs
from dtq.bulk.matching import count_matching
from dtq.bulk.model import Action, BulkJob, BulkWish, Preview, preview_as_json
from dtq.bulk.run import run_job

__all__ = ["Action", "BulkJob", "BulkJobs", "BulkWish", "Preview", "count_matching", "preview_as_json", "run_job"]
