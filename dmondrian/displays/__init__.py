"""Pictures of forests and runs, in scikit-learn's manner: made `from_` something, then plotted.

Relies on fitted estimators, runs and matplotlib (the extra `plots`), which is loaded when something
is plotted. Promises that a display holds the numbers it draws as attributes, draws into the axes
that it is given, and changes nothing else.

scikit-learn's own displays take these estimators too:
``sklearn.calibration.CalibrationDisplay.from_predictions`` with :func:`stream_predictions` shows
the calibration of forecasts made before their rows were learned. The pictures of `dmondrian report`
are displays too, of runs as of arrays; they take their numbers from where the report does.
``sklearn.metrics.RocCurveDisplay``, ``sklearn.metrics.PrecisionRecallDisplay``,
``sklearn.metrics.ConfusionMatrixDisplay``, ``sklearn.metrics.PredictionErrorDisplay`` and
``sklearn.inspection.PartialDependenceDisplay`` draw fitted estimators.
"""

from dmondrian.displays.age_weights_display import AgeWeightsDisplay
from dmondrian.displays.class_displays import (
    ConfusionDisplay,
    PrecisionRecallDisplay,
    ReliabilityDisplay,
    RocDisplay,
)
from dmondrian.displays.column_dependence_display import ColumnDependenceDisplay
from dmondrian.displays.depth import WeightedDepthDisplay
from dmondrian.displays.importances import ImportancesDisplay
from dmondrian.displays.learning_curve import LearningCurveDisplay, stream_predictions
from dmondrian.displays.lifetime_path import LifetimePathDisplay
from dmondrian.displays.number_displays import CoverageDisplay, ForecastErrorDisplay
from dmondrian.displays.partition import PartitionDisplay

__all__ = [
    "AgeWeightsDisplay",
    "ColumnDependenceDisplay",
    "ConfusionDisplay",
    "CoverageDisplay",
    "ForecastErrorDisplay",
    "ImportancesDisplay",
    "LearningCurveDisplay",
    "LifetimePathDisplay",
    "PartitionDisplay",
    "PrecisionRecallDisplay",
    "ReliabilityDisplay",
    "RocDisplay",
    "WeightedDepthDisplay",
    "stream_predictions",
]
