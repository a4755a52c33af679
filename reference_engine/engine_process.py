"""The engine's own process: one loop of receive, step, send, and nothing of HTTP.

Started by the HTTP process with one end of a socket pair. It ends when told to, or when the other end is
gone, and writes its logs either way. Signals from the terminal are left to the HTTP process.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import os
import signal
import socket
import sys
import time
from dataclasses import replace
from pathlib import Path

import msgspec

from reference_engine.channel import (
    Cached,
    Cancel,
    EngineEnd,
    GetLog,
    GetStatus,
    Log,
    Ready,
    Refused,
    Shutdown,
    Status,
    Submit,
    ToEngine,
    pack_tokens,
)
from reference_engine.config import AS_MANY_AS_FIT, ConfigError, EngineConfig
from reference_engine.cost import Weights
from reference_engine.door import TurnedAwayError
from reference_engine.engine import Engine
from reference_engine.fit import fit_account, fit_profile
from reference_engine.model_info import describe_model
from reference_engine.policies import make_policy
from reference_engine.scheduler import Scheduler, UnservableError
from reference_engine.sequence import Sampling, Sequence
from reference_engine.step import Emission
from reference_engine.steplog import write_logs

# glibc's mallopt parameters.
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3


def keep_freed_memory() -> None:
    """Let the allocator keep the MB that each step takes and frees: page faults cost a tenth of a step."""
    libc = ctypes.CDLL(None)
    if hasattr(libc, "mallopt"):
        libc.mallopt(M_MMAP_THRESHOLD, 32 << 20)
        libc.mallopt(M_TRIM_THRESHOLD, 256 << 20)


def build_engine(config: EngineConfig) -> Engine:
    """Make an engine on torch and real time, warmed up."""
    return start_engine(config)[0]


def start_engine(config: EngineConfig) -> tuple[Engine, Ready]:
    """Make an engine on torch and real time, warmed up; and say what it computes with."""
    from reference_engine.executors.torch import TorchExecutor, load_decoder, tokens_that_fit

    keep_freed_memory()
    decoder = load_decoder(config)
    if config.kv_tokens == AS_MANY_AS_FIT:
        config = replace(config, kv_tokens=tokens_that_fit(decoder, config.block_tokens))
    scheduler = Scheduler(config, make_policy(config), describe_model(config.model).eos_ids)
    executor = TorchExecutor(config, decoder, scheduler.tables)
    executor.warm_up()
    ready = Ready(
        num_params=decoder.weights.num_params,
        device=executor.device_name,
        dtype=executor.dtype_name,
        kv_tokens=config.pool_tokens,
    )
    return Engine(config, scheduler, executor, time.monotonic_ns), ready


def log_metadata(config: EngineConfig, weights: Weights | None = None) -> dict[str, str]:
    facts = {"block_tokens": str(config.block_tokens), "config": msgspec.json.encode(config).decode()}
    return facts if weights is None else facts | {"cost": msgspec.json.encode(weights).decode()}


class EngineLoop:
    """Connects an engine to its end of the channel."""

    def __init__(self, engine: Engine, end: EngineEnd) -> None:
        self._engine = engine
        self._end = end
        self._sequences: dict[int, Sequence] = {}

    def run(self) -> None:
        """Step while there is work, wait while there is none; return on Shutdown or a lost peer."""
        engine, end = self._engine, self._end
        while (messages := end.receive(may_wait=not engine.has_work)) is not None:
            for message in messages:
                if isinstance(message, Shutdown):
                    return
                self._take(message)
            self._drop_expired()
            if engine.has_work:
                self._send(engine.step())

    def _drop_expired(self) -> None:
        for sequence in self._engine.drop_expired():
            del self._sequences[sequence.handle]
            self._end.send(Refused(sequence.handle, 503, "not started before its deadline"))

    def _send(self, emissions: list[Emission]) -> None:
        if not emissions:
            return
        if self._engine.config.is_prefix_shared:
            self._report_cached(emissions)
        self._end.send(pack_tokens(emissions))
        for sequence, _, reason in emissions:
            if reason is not None:
                del self._sequences[sequence.handle]

    def _report_cached(self, emissions: list[Emission]) -> None:
        for sequence, _, _ in emissions:
            if sequence.num_emitted == 1:
                self._end.send(Cached(sequence.handle, sequence.num_cached))

    def _take(self, message: ToEngine) -> None:
        match message:
            case Submit():
                self._submit(message)
            case Cancel(handle, reason):
                if (sequence := self._sequences.pop(handle, None)) is not None:
                    self._engine.cancel(sequence, reason)
            case GetStatus(ticket):
                self._end.send(Status(ticket, self._engine.status()))
            case GetLog(ticket):
                log = self._engine.log
                steps, metadata = log.steps().tobytes(), log_metadata(self._engine.config)
                self._end.send(Log(ticket, steps, list(log.requests), metadata))

    def _submit(self, message: Submit) -> None:
        sequence = Sequence(
            handle=message.handle,
            request_id=message.request_id,
            tokens=message.prompt,
            num_prompt=len(message.prompt),
            max_tokens=message.max_tokens,
            min_tokens=message.min_tokens,
            ignore_eos=message.ignore_eos,
            priority=message.priority,
            user=message.user,
            arrived_ns=message.arrived_ns,
            sampling=Sampling(
                temperature=message.temperature,
                top_p=message.top_p,
                top_k=message.top_k,
                seed=message.seed,
            ),
        )
        try:
            self._engine.add(sequence)
        except UnservableError as error:
            self._end.send(Refused(message.handle, 400, str(error)))
        except TurnedAwayError as error:
            self._end.send(Refused(message.handle, 429, str(error)))
        else:
            self._sequences[message.handle] = sequence


def save_profile(engine: Engine, path: Path) -> None:
    """Write what the engine's steps cost, for simulations; say why where they do not tell."""
    try:
        profile = fit_profile(engine.log.steps(), engine.config, path.stem)
    except ConfigError as error:
        print(f"reference_engine: no profile: {error}", file=sys.stderr)
        return
    path.write_bytes(msgspec.json.format(msgspec.json.encode(profile), indent=2) + b"\n")


def main() -> None:
    parser = argparse.ArgumentParser(prog="reference_engine.engine_process")
    parser.add_argument("--fd", type=int, required=True)
    parser.add_argument("--config", required=True)
    parser.add_argument("--pin", type=int)
    parser.add_argument("--log-dir", type=Path)
    parser.add_argument("--profile-out", type=Path)
    args = parser.parse_args()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if args.pin is not None:
        os.sched_setaffinity(0, {args.pin})
    config = msgspec.json.decode(args.config, type=EngineConfig)
    end = EngineEnd(socket.socket(fileno=args.fd))
    try:
        engine, ready = start_engine(config)
    except ConfigError as error:
        sys.exit(f"reference_engine: {error}")
    config = engine.config
    # What start-up made lives for ever: keep the collector from walking it between two steps.
    gc.collect()
    gc.freeze()
    end.send(ready)
    try:
        EngineLoop(engine, end).run()
    finally:
        if args.log_dir is not None:
            weights = fit_account(engine.log.steps())
            write_logs(engine.log, args.log_dir, log_metadata(config, weights), weights)
        if args.profile_out is not None:
            save_profile(engine, args.profile_out)


if __name__ == "__main__":
    main()
