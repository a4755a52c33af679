"""The client's processor shared with a busy loop: errors of kernel stamps and of our own reads.

`python -m benchmarks.busy URL --streams N --tokens N --out FILE` is the client; it writes, for each token
event, both instants. `measure_busy` starts all three and holds the instants
against the server's log.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.stacks import Ask, opening_s, parse_exchange, receive_exchanges
from loadgen.golden.process import GOLDEN, Int64, start_server


@dataclass(frozen=True, slots=True, kw_only=True)
class BusyErrors:
    """Instants outside the server's writes, ns: by the kernel's stamp and by our own read."""

    kernel_ns: Int64
    read_ns: Int64
    is_alone: np.ndarray
    lateness_ns: Int64


@contextlib.contextmanager
def busy_loops(cpu: int, num_loops: int = 1) -> Iterator[None]:
    """Keep a processor busy until the block ends."""
    program = f"import os; os.sched_setaffinity(0, {{{cpu}}})\nwhile True: pass"
    with contextlib.ExitStack() as stack:
        for _ in range(num_loops):
            process = stack.enter_context(subprocess.Popen([sys.executable, "-c", program]))
            stack.callback(process.kill)
        yield


def measure_busy(num_streams: int, num_tokens: int, tokens_per_s: int, cpus: tuple[int, int]) -> BusyErrors:
    """Receive paced streams while a busy loop runs beside the client. cpus: the server's, the client's."""
    server_cpu, client_cpu = cpus
    ttft_ms = opening_s(num_streams) * 1e3 + 500
    gap_ms = num_streams / tokens_per_s * 1e3
    flags = ("--cpu", f"{server_cpu}", "--ttft-ms", f"{ttft_ms}", "--gap-ms", f"{gap_ms}")
    with (
        tempfile.TemporaryDirectory() as folder,
        start_server(GOLDEN, *flags) as server,
        busy_loops(client_cpu),
    ):
        out = Path(folder) / "instants.npz"
        sizes = ["--streams", f"{num_streams}", "--tokens", f"{num_tokens}", "--cpu", f"{client_cpu}"]
        command = [sys.executable, "-m", "benchmarks.busy", server.url, *sizes, "--out", f"{out}"]
        subprocess.run(command, check=True)
        log = server.take_log()
        with np.load(out) as seen:
            events = np.concatenate([log.events_of(f"b-{index}") for index in seen["index"]])
            before_ns, after_ns = log.before_ns[events], log.after_ns[events]
            return BusyErrors(
                kernel_ns=seen["stamps"] - np.clip(seen["stamps"], before_ns, after_ns),
                read_ns=seen["reads"] - np.clip(seen["reads"], before_ns, after_ns),
                is_alone=seen["stamps"] == seen["lowers"],
                lateness_ns=log.lateness_ns(),
            )


def main() -> None:
    """Receive the streams and write what both clocks said of each token event."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("url")
    parser.add_argument("--streams", type=int, required=True)
    parser.add_argument("--tokens", type=int, required=True)
    parser.add_argument("--cpu", type=int, required=True)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    os.sched_setaffinity(0, {args.cpu})
    ask = Ask(url=args.url, num_streams=args.streams, num_tokens=args.tokens)
    exchanges = receive_exchanges(ask).exchanges
    records = [parse_exchange(exchange, ask) for exchange in exchanges]
    read_at = [dict(zip(exchange.stamps, exchange.reads_ns, strict=True)) for exchange in exchanges]
    np.savez(
        args.out,
        index=[record.index for record in records],
        stamps=[stamp for record in records for stamp in record.chunk_ns],
        lowers=[lower for record in records for lower in record.chunk_lower_ns],
        reads=[reads[t] for record, reads in zip(records, read_at, strict=True) for t in record.chunk_ns],
    )


if __name__ == "__main__":
    main()
