"""Parts of Numba and llvmlite for functions that write LLVM code themselves."""

from llvmlite import ir
from numba.core import cgutils, types

__all__ = ["cgutils", "ir", "types"]
