"""What helps a load process that came too late: a right, a processor, or less to do."""

from __future__ import annotations

from loadgen.priority import FELL_BACK, REAL_TIME
from loadgen.units import format_seconds

BUSY_SHARE = 0.6  # of a processor: above it, what is late waits for the load process itself


def advice_for_starved(
    scheduling: str | None, *, cpu_s: float | None, wait_s: float | None, drive_s: float | None
) -> str:
    """Say what to do. cpu_s, wait_s: it ran, and was ready while others ran; None: not known."""
    account = ""
    if cpu_s is not None and wait_s is not None:
        account = (
            f"The load process ran for {format_seconds(cpu_s)} and waited {format_seconds(wait_s)} "
            "for a processor. "
        )
    is_busy = cpu_s is not None and drive_s and cpu_s >= BUSY_SHARE * drive_s and (wait_s or 0.0) < cpu_s
    if is_busy or FELL_BACK in (scheduling or ""):
        return f"{account}It has too much to do: add --workers, or lower --rate (--trace-speed)."
    if scheduling is None:
        return f"{account}Keep other work off its processors, or send from another machine."
    if REAL_TIME not in scheduling:
        return (
            f"{account}Let it go first: permit real-time scheduling (`bench doctor` says how; not with "
            "--no-realtime), or keep other work off its processors."
        )
    return (
        f"{account}Real-time scheduling did not help: the machine itself stood still (a virtual machine "
        "whose processors are taken away, other real-time work); send from another machine."
    )
