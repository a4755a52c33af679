"""Starts and stops the reference engine as an OpenAI-compatible server.

`python -m reference_engine.server --port 0` is this process: HTTP, signals, and the engine process it starts.
It listens at once and answers 503 until the engine is ready; SIGTERM or SIGINT lets answers in flight finish
for a while, stops the engine, which writes its logs, and leaves with 0. With --ready-fd the process was
started by another one and dies with it (with the *thread* that started it, as Linux sees it).
"""

from __future__ import annotations

import argparse
import asyncio
import ctypes
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence as Seq
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn, get_args

import msgspec

from reference_engine.api import ServedModel
from reference_engine.config import (
    AS_MANY_AS_FIT,
    SHAPES,
    ConfigError,
    Device,
    DoorConfig,
    Dtype,
    EngineConfig,
)
from reference_engine.connection import Connection
from reference_engine.devices import DEFAULT_MODELS, choose_device
from reference_engine.frontend import Frontend
from reference_engine.model_info import ModelInfo, describe_model
from reference_engine.policies import POLICIES, all_knobs, make_policy
from reference_engine.tokenizer import Tokenizer, WordTokenizer

PR_SET_PDEATHSIG = 1
PROGRAM = "bench serve"
KNOB_PREFIX = "knob_"
# Fields that are flags of the same name.
SETTINGS = {
    "policy": f"one of: {', '.join(POLICIES)}",
    "seed": "of the random weights",
    "block_tokens": "of a block of KV memory",
    "max_batch": "requests a step",
    "chunk_tokens": "tokens a step",
    "swap_tokens": "room for --swap",
    "threads": "of the engine",
    "log_requests": "kept in the log",
}
DOOR_SETTINGS = {
    "max_waiting": "requests in the queue",
    "bucket_tokens": "prompt tokens that may come at once",
    "bucket_tokens_per_s": "and that may follow",
    "max_wait_s": "turn away who would wait longer",
    "drop_after_s": "give up on who was not started by then",
}


class Parser(argparse.ArgumentParser):
    """Says in one line what is wrong, as every other command does."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message} (see {self.prog} --help)\n")


def parse_args(argv: Seq[str] | None) -> argparse.Namespace:
    defaults = EngineConfig()
    parser = Parser(prog=PROGRAM, description="OpenAI-compatible server")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8000, help="0 takes a free port")
    parser.add_argument(
        "--model", help=f"a Hugging Face folder, or a shape: {', '.join(SHAPES)}; tiny, on CUDA 1b"
    )
    parser.add_argument("--served-model-name", help="name for clients; the folder's or shape's by default")
    parser.add_argument("--device", default="auto", choices=("auto", *get_args(Device)))
    parser.add_argument("--dtype", default=defaults.dtype, choices=get_args(Dtype))
    parser.add_argument("--kv-tokens", type=int, help=f"{defaults.kv_tokens}, on CUDA what fits")
    parser.add_argument(
        "--max-model-len",
        type=int,
        help=f"{defaults.max_model_len}, or what the model can where that is less",
    )
    add_settings(parser, defaults, SETTINGS)
    parser.add_argument(
        "--prefix-sharing", action=argparse.BooleanOptionalAction, default=defaults.is_prefix_shared
    )
    parser.add_argument("--bos", action=argparse.BooleanOptionalAction, default=True, help="before a prompt")
    parser.add_argument(
        "--eos", action=argparse.BooleanOptionalAction, help="may the model end answers; a folder's may"
    )
    parser.add_argument("--check-invariants", action="store_true", help="assert them after every step")
    parser.add_argument("--pin-engine", type=int, metavar="CPU", help="run the engine on this processor only")
    parser.add_argument("--log-dir", type=Path, help="write the step and request logs here on exit")
    parser.add_argument("--profile-out", type=Path, help="write a cost model of the steps here on exit")
    parser.add_argument("--ready-fd", type=int, metavar="FD", help="write one JSON line here when ready")
    parser.add_argument("--drain-timeout", type=float, default=10.0, metavar="S")
    add_settings(parser.add_argument_group("admission control; 0 is off"), defaults.door, DOOR_SETTINGS)
    add_knobs(parser)
    return parser.parse_args(argv)


def add_settings(
    group: argparse._ActionsContainer, defaults: EngineConfig | DoorConfig, settings: dict[str, str]
) -> None:
    """Add a flag for each named field, with its default and a few words."""
    for name, words in settings.items():
        default = getattr(defaults, name)
        group.add_argument(f"--{name.replace('_', '-')}", type=type(default), default=default, help=words)


def add_knobs(parser: argparse.ArgumentParser) -> None:
    """Add a flag for every knob of every policy; what is not given keeps the policy's own default."""
    group = parser.add_argument_group("policy knobs")
    for knob in all_knobs().values():
        of_some = ", ".join(f"{policy} ({default})" for policy, default in knob.defaults.items())
        where = "any policy" if len(knob.defaults) == len(POLICIES) else of_some
        options: dict[str, Any] = {"dest": KNOB_PREFIX + knob.name, "help": where}
        if knob.kind is bool:
            options["action"] = argparse.BooleanOptionalAction
        else:
            options |= {"type": knob.kind, "choices": knob.choices}
            options["metavar"] = None if knob.choices else knob.kind.__name__.upper()
        group.add_argument(f"--{knob.name.replace('_', '-')}", **options)


def given_knobs(args: argparse.Namespace) -> dict[str, Any]:
    given = {
        name.removeprefix(KNOB_PREFIX): v for name, v in vars(args).items() if name.startswith(KNOB_PREFIX)
    }
    return {name: value for name, value in given.items() if value is not None}


def engine_config(args: argparse.Namespace, info: ModelInfo, device: Device) -> EngineConfig:
    defaults = EngineConfig()
    kv_tokens = args.kv_tokens
    if kv_tokens is None:
        kv_tokens = defaults.kv_tokens if device == "cpu" else AS_MANY_AS_FIT
    can, usual = info.max_positions, defaults.max_model_len
    max_model_len = args.max_model_len or min(usual, can or usual)
    if can is not None and max_model_len > can:
        raise ConfigError(f"--max-model-len {max_model_len} is above the {can} positions of {info.name}")
    config = EngineConfig(
        model=info.name if info.folder is None else str(info.folder),
        kv_tokens=kv_tokens,
        max_model_len=max_model_len,
        knobs=given_knobs(args),
        is_prefix_shared=args.prefix_sharing,
        door=DoorConfig(**{name: getattr(args, name) for name in DOOR_SETTINGS}),
        is_eos_enabled=info.folder is not None if args.eos is None else args.eos,
        device=device,
        dtype=args.dtype,
        check_invariants=args.check_invariants,
        **{name: getattr(args, name) for name in SETTINGS},
    )
    # Refuses what does not fit before anything is started; what fits on a GPU is only known after.
    make_policy(replace(config, kv_tokens=kv_tokens or max_model_len + args.block_tokens))
    return config


def die_with_parent(parent_pid: int) -> None:
    """Ask the kernel for SIGTERM when whoever started this process dies; leave if that has happened."""
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent_pid:
        os.kill(os.getpid(), signal.SIGTERM)


def start_engine(
    config: EngineConfig, args: argparse.Namespace
) -> tuple[subprocess.Popen[bytes], socket.socket]:
    """Start the engine process; return it and this end of the channel to it."""
    ours, theirs = socket.socketpair()
    command = [sys.executable, "-m", "reference_engine.engine_process", "--fd", str(theirs.fileno())]
    command += ["--config", msgspec.json.encode(config).decode()]
    if args.pin_engine is not None:
        command += ["--pin", str(args.pin_engine)]
    if args.log_dir is not None:
        command += ["--log-dir", str(args.log_dir)]
    if args.profile_out is not None:
        command += ["--profile-out", str(args.profile_out)]
    threads = str(config.threads)
    environment = {**os.environ, "OMP_NUM_THREADS": threads, "MKL_NUM_THREADS": threads}
    with theirs:
        process = subprocess.Popen(command, pass_fds=[theirs.fileno()], env=environment)
    return process, ours


def report_ready(args: argparse.Namespace, port: int, frontend: Frontend, engine_pid: int) -> None:
    """Say that the server is ready: in words on stderr, and as JSON where --ready-fd asks for it."""
    name, facts = frontend.model.name, frontend.facts
    what = f"{facts.num_params / 1e6:.1f} M parameters, {facts.dtype} on {facts.device}, {args.policy}"
    print(f"serving {name} ({what}) on http://{args.host}:{port}", file=sys.stderr, flush=True)
    if args.ready_fd is not None:
        about = {"port": port, "model": name, "pid": os.getpid(), "engine_pid": engine_pid}
        about |= {"policy": args.policy, "num_params": facts.num_params}
        about |= {"device": facts.device, "dtype": facts.dtype, "kv_tokens": facts.kv_tokens}
        with os.fdopen(args.ready_fd, "wb") as ready:
            ready.write(msgspec.json.encode(about) + b"\n")


async def first_of(*events: asyncio.Event, timeout_s: float | None = None) -> None:
    """Wait until one of the events is set, or for `timeout_s`."""
    waits = [asyncio.create_task(event.wait()) for event in events]
    await asyncio.wait(waits, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
    for wait in waits:
        wait.cancel()


def served_model(args: argparse.Namespace, config: EngineConfig, info: ModelInfo) -> ServedModel:
    tokenizer: Tokenizer = WordTokenizer(is_bos_enabled=args.bos)
    if info.folder is not None:
        from reference_engine.hf_tokenizer import HfTokenizer

        tokenizer = HfTokenizer(info.folder, is_bos_enabled=args.bos)
    return ServedModel(
        name=args.served_model_name or info.name,
        tokenizer=tokenizer,
        num_ids=info.num_ids,
        max_model_len=config.max_model_len,
    )


async def serve(
    args: argparse.Namespace, config: EngineConfig, model: ServedModel, listener: socket.socket
) -> int:
    """Serve until a signal comes or the engine dies; return the exit code."""
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    frontend = Frontend(model)
    process, channel = start_engine(config, args)
    await loop.create_connection(lambda: frontend.link, sock=channel)
    server = await loop.create_server(lambda: Connection(frontend), sock=listener, backlog=4096)
    await first_of(frontend.ready, frontend.engine_gone, stop)
    if frontend.ready.is_set() and not stop.is_set():
        report_ready(args, listener.getsockname()[1], frontend, process.pid)
        await first_of(frontend.engine_gone, stop)
    frontend.start_drain()
    server.close()
    if not frontend.engine_gone.is_set():
        stop.clear()  # a second signal ends the drain
        await first_of(frontend.drained, frontend.engine_gone, stop, timeout_s=args.drain_timeout)
        frontend.stop_engine()
    exit_code = await asyncio.to_thread(process.wait)
    if exit_code != 0:
        print(f"{PROGRAM}: the engine process ended with {exit_code}", file=sys.stderr)
    return 1 if exit_code != 0 else 0


def main(argv: Seq[str] | None = None) -> int:
    """Run the server; returns its exit code, 2 where the arguments cannot work."""
    args = parse_args(argv)
    if args.ready_fd is not None:
        die_with_parent(os.getppid())
    try:
        device = choose_device(args.device)
        info = describe_model(args.model or DEFAULT_MODELS[device])
        config = engine_config(args, info, device)
        model = served_model(args, config, info)
        listener = socket.create_server((args.host, args.port), backlog=4096)
    except (ConfigError, OSError, OverflowError) as error:
        print(f"{PROGRAM}: {error}", file=sys.stderr)
        return 2
    try:
        import uvloop
    except ImportError:
        return asyncio.run(serve(args, config, model, listener))
    return uvloop.run(serve(args, config, model, listener))


if __name__ == "__main__":
    sys.exit(main())
