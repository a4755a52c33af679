"""Workloads: which request is due when, with how long a prompt and answer. Pure and seeded; sends nothing."""

from workloads.errors import WorkloadError
from workloads.plan import Plan
from workloads.prompts import PromptMaker
from workloads.spec import Workload

__all__ = ["Plan", "PromptMaker", "Workload", "WorkloadError"]
