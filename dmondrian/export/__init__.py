"""Export of forests to other programs: ONNX models, C source, plain trees for SHAP values.

Beside these what follows from plain trees alone: partial dependence.

Relies on fitted estimators and runs. Promises models that predict as the forest does, or an error
with the reason why a forest cannot be exported.
"""

from dmondrian.export.c_source import to_c
from dmondrian.export.onnx import to_onnx
from dmondrian.export.plain_trees import shap_trees
from dmondrian.export.tree_dependence import partial_dependence

__all__ = ["partial_dependence", "shap_trees", "to_c", "to_onnx"]
