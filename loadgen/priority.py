"""Who goes first where threads of ours share a processor: whatever sends and stamps, then all else."""

from __future__ import annotations

import os
import sys

LEAST = 19


def step_back() -> None:
    """Let every load process go before this thread (Linux, where each thread has a priority of its own)."""
    if sys.platform == "linux":
        os.setpriority(os.PRIO_PROCESS, 0, LEAST)
