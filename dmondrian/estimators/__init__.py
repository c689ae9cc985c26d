"""Estimators with the interface of scikit-learn, independent of clusters.

====================================  ==============================  =============================
estimators                            trees                           prediction
====================================  ==============================  =============================
``AMF-``                              Mondrian trees without end      exact mixture over prunings
``MondrianForest-``                   with a lifetime: fixed, growing mean, vote, or hierarchical
                                      with the rows, or none; on the  smoothing (for regression
                                      range of the data or the cube   with ``return_std``)
``GeneralizedMondrianForest-``        the same                        in each cell the best constant
                                                                      under a convex loss
``MondrianDensity``                   on the unit cube                the density, and draws from it
``OnlineRandomForest-``               splits chosen by gain among     shares, votes or means of rows
                                      candidates, in bounded memory   that chose no split
``MondrianKernel-``                   with a lifetime, given or found ridge regression with the
                                      in one sweep over all of them   Laplace kernel, on the cells
                                                                      of all trees together
``MondrianFeatures``                  with a lifetime                 none: a transformer, sparse
                                                                      features of the kernel
====================================  ==============================  =============================
"""

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
