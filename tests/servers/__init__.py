"""Known servers to hold a client against, each a process: `python -m tests.servers.NAME --port 0 ...`.

golden: every write due at a known instant and logged (the product's own, `loadgen.golden`). null: answers at
once, for cost per request and per token. faulty: every fault by name, logged per request.
`loadgen.golden.process.start_server(GOLDEN | NULL | FAULTY, flags...)` runs one for the length of a block.
"""

from loadgen.golden.process import GOLDEN

NULL = "tests.servers.null"
FAULTY = "tests.servers.faulty"

__all__ = ["FAULTY", "GOLDEN", "NULL"]
