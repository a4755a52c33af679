"""The life of a load process around its loop: signals, processor, rows."""

from __future__ import annotations

import os
import signal
import sys
from contextlib import closing
from multiprocessing.connection import Connection

from loadgen.drive.messages import Task
from loadgen.drive.worker import LoadProcess
from loadgen.errors import RunFolderError
from loadgen.row_stream import RowWriter, WithoutPandas, stream_path


def run_worker(task: Task, control: Connection) -> None:
    """The main function of a load process; talks over `control` and ends when its share is in the folder."""
    for signum in (signal.SIGINT, signal.SIGHUP):  # they reach the whole group; the parent decides
        signal.signal(signum, signal.SIG_IGN)
    sys.meta_path.insert(0, WithoutPandas())  # to the end of the process
    if task.cpu is not None:
        os.sched_setaffinity(0, {task.cpu})
    path = stream_path(task.folder, task.share.worker)
    try:
        with closing(RowWriter(path, batch_rows=sys.maxsize)) as rows:  # the ledger decides when
            LoadProcess(task, control, rows).run()
    except RunFolderError as exc:
        print(f"bench: load process {task.share.worker}: {exc}", file=sys.stderr)
        sys.exit(1)
