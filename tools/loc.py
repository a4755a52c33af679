"""Count the product's lines, tests and benchmarks apart: physical lines, and lines that hold code.

Lines of code leave out blank lines, comments and docstrings. Run by `make loc`.
"""

from __future__ import annotations

import ast
import io
import subprocess
import tokenize
from pathlib import Path

PRODUCT = ("loadgen", "workloads", "reports", "reference_engine")
NO_CODE = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
}


def code_lines(source: str) -> int:
    """Lines of Python source that hold code."""
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in NO_CODE:
            lines.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            first = node.body[0] if node.body else None
            if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant):
                assert first.end_lineno is not None
                lines -= set(range(first.lineno, first.end_lineno + 1))
    return len(lines)


def main() -> None:
    total_code = total_lines = 0
    print(f"{'code':>8} {'lines':>8}  package")
    for package in (*PRODUCT, "tests", "benchmarks"):
        listed = subprocess.run(
            ["git", "ls-files", f"{package}/*.py"], check=True, capture_output=True, text=True
        ).stdout.split()
        sources = [Path(path).read_text(encoding="utf-8") for path in listed]
        code, lines = sum(map(code_lines, sources)), sum(source.count("\n") for source in sources)
        print(f"{code:8,} {lines:8,}  {package}")
        if package in PRODUCT:
            total_code, total_lines = total_code + code, total_lines + lines
    print(f"{total_code:8,} {total_lines:8,}  the product (tests and benchmarks apart)")


if __name__ == "__main__":
    main()
