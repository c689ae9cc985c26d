"""Builder of graphs of ONNX operators, from inputs to outputs.

Relies on the package onnx, loaded when a graph is made. Promises a model that its checker passes.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from dmondrian.errors import ParameterError

ONNX_OPSET, ONNX_ML_OPSET = 17, 3  # of 2022 and 2021: supported since onnxruntime 1.12
_IR_VERSION = 8  # of the same year


class Graph:
    """Operators in the order in which they were added; values are referred to by name."""

    def __init__(self) -> None:
        self._nodes: list[Any] = []
        self._constants: list[Any] = []
        self._inputs: list[Any] = []
        self._outputs: list[Any] = []
        self._taken: set[str] = set()  # names of inputs and outputs
        self._refusal: str | None = None  # float32 [n, 1]: NaN for rows without an answer, else 0

    def input(self, name: str, kind: Any, width: int) -> str:
        """Add an input [n, width] of a NumPy kind; return its name."""
        from onnx import helper

        self._take(name)
        shape: list[str | int | None] = ["n", width]
        self._inputs.append(helper.make_tensor_value_info(name, _element(kind), shape))
        return name

    def constant(self, value: Any) -> str:
        """Add a constant; return its name."""
        from onnx import numpy_helper

        name = f"dmondrian/constant_{len(self._constants)}"
        array = np.asarray(value)
        if array.dtype.kind == "U":
            array = array.astype(object)
        self._constants.append(numpy_helper.from_array(array, name))
        return name

    def add(self, operator: str, *inputs: str, domain: str = "", **attributes: Any) -> str:
        """Add an operator with one output; return the output's name."""
        from onnx import helper, numpy_helper

        name = f"dmondrian/{operator}_{len(self._nodes)}"
        for key, value in attributes.items():
            if isinstance(value, type):
                attributes[key] = _element(value)
            elif isinstance(value, np.ndarray):
                attributes[key] = numpy_helper.from_array(value, f"{name}_{key}")
        node = helper.make_node(operator, list(inputs), [name], name, domain=domain, **attributes)
        self._nodes.append(node)
        return name

    def refuse_infinite(self, values: str) -> None:
        """Give rows no answer in which one of these, [n, any], is NaN or infinite."""
        # Of a number that is not finite the difference from itself is NaN.
        difference = self.add("Sub", values, values)
        of_row = self.add("ReduceSum", difference, self.constant(np.array([1])), keepdims=1)
        refusal = self.add("Cast", of_row, to=np.float32)
        if self._refusal is not None:
            refusal = self.add("Add", self._refusal, refusal)
        self._refusal = refusal

    def output(self, value: str, name: str, kind: Any, width: int | None = None) -> None:
        """Make a value an output called `name`, [n, width], or [n] without a width.

        Numbers [n, width] are NaN for rows that have no answer.
        """
        from onnx import helper

        if width is not None and self._refusal is not None:
            value = self.add("Add", value, self._refusal)
        self._take(name)
        self._nodes.append(helper.make_node("Identity", [value], [name], f"output_{name}"))
        shape: list[str | int | None] = ["n"] if width is None else ["n", width]
        self._outputs.append(helper.make_tensor_value_info(name, _element(kind), shape))

    def _take(self, name: str) -> None:
        """Reserve a name for an input or output; refuse one that is taken."""
        if name in self._taken:
            raise ParameterError(
                f"a column is called {name!r} like an output of the model, and names are unique in "
                "ONNX: rename the column, or export with columns=False (on the command line "
                "--encoded)"
            )
        self._taken.add(name)

    def model(self, about: dict[str, str]) -> Any:
        """Return the model, checked, with metadata."""
        from onnx import checker, helper

        graph = helper.make_graph(
            self._nodes, "dmondrian", self._inputs, self._outputs, self._constants
        )
        opsets = [
            helper.make_opsetid("", ONNX_OPSET),
            helper.make_opsetid("ai.onnx.ml", ONNX_ML_OPSET),
        ]
        model = helper.make_model(
            graph, opset_imports=opsets, ir_version=_IR_VERSION, producer_name="dmondrian"
        )
        helper.set_model_props(model, about)
        checker.check_model(model)
        return model


def _element(kind: Any) -> int:
    """Return the element type of ONNX for a NumPy kind."""
    from onnx import TensorProto, helper

    if issubclass(kind, np.str_):
        return int(TensorProto.STRING)
    return int(helper.np_dtype_to_tensor_dtype(np.dtype(kind)))
