"""Export of forests to other programs: ONNX models, and plain trees for SHAP values.

Relies on fitted estimators and runs. Promises models that predict as the forest does, or an error
with the reason why a forest cannot be exported.
"""

from dmondrian.export.onnx import to_onnx
from dmondrian.export.plain_trees import shap_trees

__all__ = ["shap_trees", "to_onnx"]
