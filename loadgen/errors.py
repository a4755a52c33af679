"""Every error that a user can meet, in one tree.

    BenchError                  one clear line, no traceback; `exit_code` says how the command ends
    ├── UsageError              2    a flag, a file or a value is wrong; nothing was sent
    │   └── TargetError         2    the target cannot be measured as asked (refused, not an OpenAI server)
    ├── RunFolderError          2    a run folder cannot be written or read
    └── BrokenOffError          3    a run that had begun could not be kept: the disk is full, the folder gone

A failed *request* is data (a row with its outcome), never an exception.
"""

from __future__ import annotations

EXIT_OK = 0
EXIT_GATE_FAILED = 1
EXIT_USAGE = 2
EXIT_INVALID = 3
EXIT_UNDECIDED = 4
EXIT_INTERRUPTED = 130
EXIT_TERMINATED = 143


class BenchError(Exception):
    """A problem to be told to the user in one line."""

    exit_code: int = EXIT_USAGE


class UsageError(BenchError):
    """A flag, a file or a value that cannot be used; says which, where and what to do."""


class TargetError(UsageError):
    """The target does not answer as it must; found before the first measured request."""


class RunFolderError(BenchError):
    """A run folder that cannot be written, or that is not one."""


class BrokenOffError(BenchError):
    """A measurement that broke off on our side after requests were sent."""

    exit_code = EXIT_INVALID
