"""The scikit-learn face of the forests; knows nothing of clusters or stores."""

from dmondrian.estimators.amf_classifier import AMFClassifier
from dmondrian.estimators.amf_regressor import AMFRegressor
from dmondrian.estimators.density import MondrianDensity
from dmondrian.estimators.features import MondrianFeatures
from dmondrian.estimators.generalized_classifier import GeneralizedMondrianForestClassifier
from dmondrian.estimators.generalized_regressor import GeneralizedMondrianForestRegressor
from dmondrian.estimators.kernel_classifier import MondrianKernelClassifier
from dmondrian.estimators.kernel_regressor import MondrianKernelRegressor
from dmondrian.estimators.mondrian_classifier import MondrianForestClassifier
from dmondrian.estimators.mondrian_regressor import MondrianForestRegressor
from dmondrian.estimators.online_classifier import OnlineRandomForestClassifier
from dmondrian.estimators.online_regressor import OnlineRandomForestRegressor

ALGORITHMS = {
    kind.algorithm: kind
    for kind in (
        AMFClassifier,
        AMFRegressor,
        GeneralizedMondrianForestClassifier,
        GeneralizedMondrianForestRegressor,
        MondrianDensity,
        MondrianFeatures,
        MondrianForestClassifier,
        MondrianForestRegressor,
        MondrianKernelClassifier,
        MondrianKernelRegressor,
        OnlineRandomForestClassifier,
        OnlineRandomForestRegressor,
    )
}

__all__ = [
    "ALGORITHMS",
    "AMFClassifier",
    "AMFRegressor",
    "GeneralizedMondrianForestClassifier",
    "GeneralizedMondrianForestRegressor",
    "MondrianDensity",
    "MondrianFeatures",
    "MondrianForestClassifier",
    "MondrianForestRegressor",
    "MondrianKernelClassifier",
    "MondrianKernelRegressor",
    "OnlineRandomForestClassifier",
    "OnlineRandomForestRegressor",
]
