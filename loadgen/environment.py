"""Where a run took place: what another machine would have to look like for its figures to be compared.

Facts only, from the operating system and the installed packages; no environment variables, no user, no
address, nothing secret. What a system does not tell is None.
"""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

PACKAGES = ("bench", "httpx", "msgspec", "numpy", "pandas", "pyarrow", "scipy", "torch", "uvloop")
GIT_TIMEOUT_S = 5


def describe_environment() -> dict[str, Any]:
    """The machine, its load and its software, as it stands in manifest.json."""
    return {
        "machine": {
            "architecture": platform.machine(),
            "cpu_model": _cpu_model(),
            "num_cpus": os.cpu_count(),
            "num_usable_cpus": len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count(),
            "cpu_governor": _read("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"),
            "memory_bytes": _memory_bytes(),
            "is_container": Path("/.dockerenv").exists() or Path("/run/.containerenv").exists(),
        },
        "kernel": f"{platform.system()} {platform.release()}",
        "clock_source": _read("/sys/devices/system/clocksource/clocksource0/current_clocksource"),
        "load_average": list(os.getloadavg()) if hasattr(os, "getloadavg") else None,
        "cpu_pressure": read_cpu_pressure(),
        "python": {"version": platform.python_version(), "implementation": platform.python_implementation()},
        "packages": {name: version for name in PACKAGES if (version := _version(name))},
        "git": _git_commit(Path(__file__).parent),
    }


def read_cpu_pressure() -> dict[str, float] | None:
    """Pressure stall information of the processors (Linux): per cent of time in which some task waited for
    one.

    avg10_percent: over the last ten seconds; total_us: since boot, so that two readings give the share
    between.
    """
    text = _read("/proc/pressure/cpu")
    if text is None:
        return None
    fields = dict(part.split("=") for part in text.splitlines()[0].split()[1:])
    return {"avg10_percent": float(fields["avg10"]), "total_us": float(fields["total"])}


def _read(path: str) -> str | None:
    try:
        return Path(path).read_text(encoding="utf-8").strip() or None
    except (OSError, UnicodeDecodeError):
        return None


def _cpu_model() -> str | None:
    for line in (_read("/proc/cpuinfo") or "").splitlines():
        if line.startswith(("model name", "Model")):
            return line.partition(":")[2].strip() or None
    return platform.processor() or None


def _memory_bytes() -> int | None:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError, AttributeError):
        return None


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _git_commit(folder: Path) -> dict[str, Any] | None:
    """The commit that this code was checked out from, and whether files differ from it; None for an installed
    copy.
    """
    commit = _git(folder, "rev-parse", "HEAD")
    if commit is None or _git(folder, "ls-files", "--error-unmatch", "errors.py") is None:
        return None
    return {
        "commit": commit,
        "is_modified": bool(_git(folder, "status", "--porcelain", "--untracked-files=no")),
    }


def _git(folder: Path, *arguments: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", *arguments], cwd=folder, capture_output=True, text=True, timeout=GIT_TIMEOUT_S, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()
