"""Numba's compiler with our own passes: for kernels, and for the parts that only kernels call.

Relies on Numba's passes. A part is not optimised or assembled for itself. References are counted
to nothing but the arrays that kernels make, and parts that may: a count for each array of each
tuple that is handed on was a large part of what had to be compiled. What Python gives to a kernel
it holds meanwhile. Promises that any other part that makes an array is refused.
"""

from __future__ import annotations

from typing import Any

from llvmlite import binding, ir
from numba import _dynfunc
from numba.core.codegen import JITCodeLibrary
from numba.core.compiler import CompilerBase, DefaultPassBuilder
from numba.core.compiler_machinery import LoweringPass, register_pass
from numba.core.errors import NumbaTypeError
from numba.core.lowering import Lower
from numba.core.typed_passes import NativeLowering, NopythonTypeInference

from dmondrian._numba.uncounted import uncounted


def _pipeline(state: Any, ours: dict[Any, Any]) -> Any:
    """Return Numba's passes with some of ours in the places of its own."""
    passes = DefaultPassBuilder.define_nopython_pipeline(state)
    passes.passes = [(ours.get(each, each), why) for each, why in passes.passes]
    return passes


def _refuse_arrays(state: Any, why: str) -> None:
    """Refuse a function that returns arrays."""
    if state.targetctx.data_model_manager[state.return_type].contains_nrt_meminfo():
        raise NumbaTypeError(why)


class _KernelLower(Lower):
    """Counts no references to what a kernel is given."""

    def extract_function_arguments(self) -> list[Any]:
        kinds, arguments = self.fndesc.argtypes, super().extract_function_arguments()
        self.fnargs = [
            uncounted(self.context, self.builder, kind, value)
            for kind, value in zip(kinds, arguments, strict=True)
        ]
        return self.fnargs

    def create_cpython_wrapper(self, release_gil: bool = False) -> None:
        counts, self.context.enable_nrt = self.context.enable_nrt, False
        super().create_cpython_wrapper(release_gil)
        self.context.enable_nrt = counts


@register_pass(mutates_CFG=True, analysis_only=False)
class _KernelLowering(NativeLowering):
    _name = "kernel_lowering"

    @property
    def lowering_class(self) -> type:
        return _KernelLower

    def run_pass(self, state: Any) -> bool:
        _refuse_arrays(state, "kernels return numbers: what they make vanishes when they end")
        done: bool = super().run_pass(state)
        return done


class _KernelLibrary(JITCodeLibrary):
    """A kernel, which is kept without what it was assembled from.

    Numba keeps that for others that call it, and reads all of it again wherever the kernel is
    loaded, which takes time.
    """

    def serialize_using_object_code(self) -> tuple[str, str, tuple[bytes, bytes]]:
        """Return what is kept: the object code, and the names of the functions in it."""
        names = ir.Module(self.name)
        names.triple = self._final_module.triple
        for each in self.get_defined_functions():
            function = ir.Function(names, ir.FunctionType(ir.VoidType(), ()), each.name)
            ir.IRBuilder(function.append_basic_block()).unreachable()
        bitcode = binding.parse_assembly(str(names)).as_bitcode()
        return self.name, "object", (self._get_compiled_object(), bitcode)


class KernelCompiler(CompilerBase):
    """For functions that Python calls."""

    def define_pipelines(self) -> list[Any]:
        """Return the passes that make a kernel."""
        state = self.state
        state.library = _KernelLibrary(state.targetctx.codegen(), state.func_id.func_qualname)
        state.library.enable_object_caching()
        passes = _pipeline(self.state, {NativeLowering: _KernelLowering})
        passes.finalize()
        return [passes]


class _PartLibrary(JITCodeLibrary):
    """A part of kernels and the parts that it calls, as LLVM's language alone.

    Numba would optimise and assemble each part for itself too, and run neither: half of the
    time of a compilation.
    """

    def _optimize_final_module(self) -> None:
        """Do nothing: kernels are optimised with the parts that they call."""

    def _finalize_final_module(self) -> None:
        self._finalize_dynamic_globals()
        self._finalized = True


@register_pass(mutates_CFG=False, analysis_only=True)
class _EnterPart(LoweringPass):
    """Lets callers find a part under a key, as Numba does with what it has assembled."""

    _name = "enter_part"

    def __init__(self) -> None:
        LoweringPass.__init__(self)

    def run_pass(self, state: Any) -> bool:
        lowered = state.cr
        names = lowered.fndesc.lookup_module(), lowered.fndesc.qualname, "a part of kernels"
        key = _dynfunc.make_function(*names, 0, lowered.env, (state.library,))  # 0: no code
        state.targetctx.insert_user_function(key, lowered.fndesc, [state.library])
        state.cr = lowered._replace(cfunc=key)
        return False


class _PartLower(Lower):
    """Keeps a part that is a call from becoming a copy."""

    def setup_function(self, fndesc: Any) -> None:
        super().setup_function(fndesc)
        if not fndesc.inline:
            self.function.attributes.add("noinline")


@register_pass(mutates_CFG=True, analysis_only=False)
class _PartLowering(NativeLowering):
    _name = "part_lowering"

    @property
    def lowering_class(self) -> type:
        return _PartLower


@register_pass(mutates_CFG=True, analysis_only=False)
class _PartInference(NopythonTypeInference):
    """Lets parts return arrays, which Numba allows only where references are counted."""

    _name = "part_type_inference"

    def run_pass(self, state: Any) -> bool:
        context, counts = state.targetctx, state.targetctx.enable_nrt
        context.enable_nrt = True
        done: bool = super().run_pass(state)
        context.enable_nrt = counts
        if counts:
            _refuse_arrays(state, "who may make arrays returns none: nobody would free them")
        return done


class PartCompiler(CompilerBase):
    """For functions that kernels call."""

    def define_pipelines(self) -> list[Any]:
        """Return the passes; what a part returns carries no counts."""
        state, context = self.state, self.state.targetctx
        state.flags.no_compile = True
        state.library = _PartLibrary(context.codegen(), state.func_id.func_qualname)

        def get_return_value(builder: Any, kind: Any, value: Any) -> Any:
            borrowed = uncounted(context, builder, kind, value)
            return type(context).get_return_value(context, builder, kind, borrowed)

        if not context.enable_nrt:  # else Numba's own functions in it would lose theirs too
            context.get_return_value = get_return_value
        ours = {NopythonTypeInference: _PartInference, NativeLowering: _PartLowering}
        passes = _pipeline(state, ours)
        passes.add_pass_after(_EnterPart, _PartLowering)
        passes.finalize()
        return [passes]
