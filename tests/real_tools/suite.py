"""The dialects against the tools themselves, installed. Not part of `make test`: run with `make test-tools`.

    TOOLS=folder pytest tests/real_tools/suite.py -s      what install.sh made in the folder

What they said is kept in said.json, with version and date, for the tests that run everywhere; renewed by
--update-goldens.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from tests.real_tools.compare import SAID, check, read_said
from tests.real_tools.log import make_log
from tests.real_tools.speak import TOOLS

FOLDER = Path(os.environ.get("TOOLS", ".tools")).resolve()


@pytest.mark.parametrize("tool", TOOLS)
def test_our_dialect_is_the_tools(tool: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    log = make_log()
    command: list[Path | str] = [FOLDER / tool / "bin/python", Path(__file__).parent / "speak.py", tool]
    answer = subprocess.run(command, input=json.dumps(log).encode(), stdout=subprocess.PIPE, check=True)
    said = json.loads(answer.stdout)
    print(f"{tool}: {said['tool']} {said['version']}")
    check(tool, said, log, tmp_path)
    if request.config.getoption("--update-goldens"):
        kept = (read_said() if SAID.exists() else {}) | {tool: said}
        SAID.write_text(json.dumps(kept, indent=1) + "\n")
