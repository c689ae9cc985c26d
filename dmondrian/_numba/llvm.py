"""What functions that write LLVM code themselves need of Numba and llvmlite."""

from llvmlite import ir
from numba.core import cgutils, types

__all__ = ["cgutils", "ir", "types"]
