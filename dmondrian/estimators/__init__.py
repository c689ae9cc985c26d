"""The scikit-learn face of the forests; knows nothing of clusters or stores."""

from dmondrian.estimators.amf_classifier import AMFClassifier
from dmondrian.estimators.amf_regressor import AMFRegressor

ALGORITHMS = {"amf-classifier": AMFClassifier, "amf-regressor": AMFRegressor}

__all__ = ["ALGORITHMS", "AMFClassifier", "AMFRegressor"]
