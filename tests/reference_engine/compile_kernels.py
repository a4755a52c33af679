"""Compiles the kernels to machine code for GPUs that are not here.

Prints for each variant the target, the bytes of shared memory, the size of the code, and how often the code
multiplies on tensor cores.
"""

from __future__ import annotations

from itertools import product

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from reference_engine.attention import kernels
from reference_engine.attention.ragged import Tiles, geometries_of, rows_of_tile
from reference_engine.config import SHAPES

TARGETS = (80, 90)
POINTERS = {torch.float32: "*fp32", torch.bfloat16: "*bf16"}


def compile_one(target: int, model: str, dtype: torch.dtype, rows: int, num_splits: int) -> str:
    (geometry, *_) = geometries_of(SHAPES[model], 16)
    tiles = Tiles(first=0, end=0, spans=torch.empty(0), rows=rows, num_splits=num_splits)
    constants = kernels.constants_of(geometry, tiles, dtype)
    types = dict.fromkeys(("query", "pages", "out"), POINTERS[dtype])
    types |= dict.fromkeys(("tables", "spans"), "*i64") | dict.fromkeys(("parts", "weights"), "*fp32")
    types |= {"query_stride": "i32", "scale": "fp32"} | dict.fromkeys(constants, "constexpr")
    names = kernels._attend.arg_names
    source = ASTSource(
        fn=kernels._attend,
        signature={name: types[name] for name in names},
        constexprs={(names.index(name),): value for name, value in constants.items()},
        attrs={(i,): [["tt.divisibility", 16]] for i in range(names.index("scale"))},
    )
    found = triton.compile(source, target=GPUTarget("cuda", target, 32), options=kernels.OPTIONS)
    num_products = sum(found.asm["ptx"].count(name) for name in ("mma.sync", "wgmma.mma_async"))
    return (
        f"sm_{target} {model} {dtype} {rows} {found.metadata.shared} {len(found.asm['cubin'])} {num_products}"
    )


if __name__ == "__main__":
    for target, model, dtype in product(TARGETS, ("1b", "8b"), POINTERS):
        for rows, num_splits in ((1, 8), (rows_of_tile(SHAPES[model]), 1)):
            print(compile_one(target, model, dtype, rows, num_splits))
