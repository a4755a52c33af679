"""Who sends what when: `drive` sends a plan from load processes and keeps a row for every request."""

from loadgen.drive.config import DriveConfig, DriveResult, Progress, WorkerStats
from loadgen.drive.pool import drive

__all__ = ["DriveConfig", "DriveResult", "Progress", "WorkerStats", "drive"]
