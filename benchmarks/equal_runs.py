"""Renew the stored equal runs of tests/loadgen/data: 20 pairs on the live engine, on a machine left alone.

python -m benchmarks.equal_runs      some 7 minutes; prints how many runs were valid
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

from loadgen.environment import describe_environment

STORED = Path("tests/loadgen/data/equal_runs.json")
FLAGS = "--rate 20 --duration 5s"
FIGURES = ("ttft.p50", "ttft.p99", "itl.p99", "e2e.mean", "e2e.p50", "e2e.p99")
BENCH = (sys.executable, "-c", "from loadgen.cli import main; main()")


def main() -> None:
    with tempfile.TemporaryDirectory() as out:
        asked = ("doctor", "--aa", "--pairs", "20", "--run", f"{FLAGS} --quiet --out {out}")
        subprocess.run([*BENCH, *asked], check=False)  # exits 3 where too few are valid: the file says so too
        (path,) = Path(out).glob("*/compare.json")
        arms = json.loads(path.read_text())["arms"]
    sides = [
        [
            {"reasons": run["reasons"], "figures": {name: run["figures"][name] for name in FIGURES}}
            for run in arm["replicates"]
        ]
        for arm in arms
    ]
    pairs = list(zip(*sides, strict=True))
    num_valid = sum(not run["reasons"] for pair in pairs for run in pair)
    machine = describe_environment()["machine"]
    document = {"flags": FLAGS, "machine": machine, "num_valid": num_valid, "pairs": pairs}
    STORED.write_text(json.dumps(document, indent=1) + "\n")
    print(f"{num_valid} of {2 * len(pairs)} runs valid: {STORED}")


if __name__ == "__main__":
    main()
