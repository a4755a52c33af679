"""Closed sessions on real sockets: a turn follows the answer before it, in one process, at one target."""

from __future__ import annotations

import re
import socket
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from loadgen.records import Outcome
from tests.loadgen.driving import even_plan, run_drive
from tests.loadgen.scripted import ScriptedServer, serving, stream
from workloads.plan import Plan

NUM_SESSIONS, NUM_TURNS, THINK_MS = 5, 3, 15.0


def sessions_plan() -> Plan:
    """Five sessions of three turns, started 4 ms apart; turns wait 15 ms for the answer before them."""
    plan = even_plan(NUM_SESSIONS * NUM_TURNS, gap_ms=0)
    turn, session = np.divmod(np.arange(len(plan)), NUM_SESSIONS)
    return replace(
        plan,
        arrival_ns=np.sort(session * 4_000_000 + turn * int(THINK_MS * 1e6) * 2),
        session=session,
        turn=turn,
        think_ns=np.where(turn > 0, int(THINK_MS * 1e6), -1),
    )


def answer_soon(sock: socket.socket, _: bytes) -> bool:
    time.sleep(0.03)
    sock.sendall(stream(4))
    return True


def hang_up(sock: socket.socket, _: bytes) -> bool:
    sock.close()
    return False


def think_ms(rows: pd.DataFrame) -> list[float]:
    """From the end of each turn to the instant at which the next was due."""
    thinks = []
    for _, turns in rows.groupby("session"):
        ordered = turns.sort_values("turn")
        thinks += (
            (ordered["scheduled_ns"].iloc[1:].to_numpy() - ordered["done_ns"].iloc[:-1]) / 1e6
        ).tolist()
    return thinks


def session_ids(server: ScriptedServer) -> list[str]:
    found = (re.search(rb"\r\nX-Session-Id: ([^\r]+)\r\n", request) for request in server.requests)
    return [match[1].decode() for match in found if match]


@pytest.mark.parametrize("num_workers", [1, 2, 8])
def test_turns_follow_the_answer_before_them(num_workers: int, tmp_path: Path) -> None:
    plan = sessions_plan()
    with serving(answer_soon) as server:
        driven = run_drive(plan, tmp_path, server.url, workers=num_workers)
    rows = driven.rows
    assert driven.outcomes == {"ok": len(plan)}
    assert think_ms(rows) == pytest.approx([THINK_MS] * NUM_SESSIONS * (NUM_TURNS - 1))
    assert (rows["sent_ns"] >= rows["scheduled_ns"]).all()
    assert rows.groupby("session")["worker"].nunique().max() == 1
    assert sorted(set(session_ids(server))) == [f"{driven.run_id}-s{k}" for k in range(NUM_SESSIONS)]


def test_a_failed_turn_releases_the_next_one(tmp_path: Path) -> None:
    plan = sessions_plan()
    with serving(hang_up) as server:
        driven = run_drive(plan, tmp_path, server.url)
    assert set(driven.outcomes) == {Outcome.RESET}
    assert len(server.requests) == len(plan)
    assert driven.rows["scheduled_ns"].notna().all()


def test_a_session_stays_with_its_target(tmp_path: Path) -> None:
    with serving(answer_soon) as one, serving(answer_soon) as other:
        run_drive(sessions_plan(), tmp_path, one.url, more_urls=(other.url,))
        homes = set(session_ids(one)), set(session_ids(other))
    assert len(homes[0]) == 3
    assert not homes[0] & homes[1]
