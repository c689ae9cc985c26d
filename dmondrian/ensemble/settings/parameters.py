"""What the bytes of a forest depend on besides its rows, as checked data.

Parameters are the settings that all systems share, and those of one system. In JSON, as in the
constructor, they are one flat list of names: checkpoints and runs hold it.

Relies on :mod:`dmondrian.ensemble.settings.systems`. Promises that equal parameters give equal
policies, and that parameters from outside are checked before a forest is built of them.

Shapes: n rows, K classes, k outputs.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from dmondrian.ensemble.settings.drift_settings import DriftSettings
from dmondrian.ensemble.settings.fringe_settings import FringeSettings
from dmondrian.ensemble.settings.kernel_settings import Joint
from dmondrian.ensemble.settings.lifetime import Lifetime, lifetime_from_json, lifetime_to_json
from dmondrian.ensemble.settings.loss_settings import Cost
from dmondrian.ensemble.settings.systems import SYSTEMS, Policies, System
from dmondrian.ensemble.settings.tree_settings import TreeSettings
from dmondrian.errors import CorruptError

# Keys of the JSON, in their order, and the types of their values.
_KINDS: dict[str, tuple[type, ...]] = {
    "algorithm": (str,),
    "n_features": (int,),
    "n_classes": (int,),
    "seed": (int,),
    "alpha": (float, int),
    "learning_rate": (float, int),
    "charge_opening": (bool,),
    "use_aggregation": (bool,),
    "split_pure": (bool,),
    "expected_extension": (bool,),
    "max_nodes": (int, type(None)),
    "feature_scales": (list, type(None)),
    "aggregation": (str, type(None)),
    "lifetime": (float, dict, type(None)),
    "discount": (float, type(None)),
    "empty_prior": (bool,),
    "domain": (str,),
    "clip": (bool,),
    "horizon": (float, type(None)),
    "cost": (dict, type(None)),
    "joint": (dict, type(None)),
    "fringe": (dict, type(None)),
    "feature_units": (list, type(None)),
    "target_range": (list, type(None)),
    "drift": (dict, type(None)),
}
_PARTS: dict[str, Any] = {
    "cost": Cost, "joint": Joint, "fringe": FringeSettings, "drift": DriftSettings,
}  # fmt: skip
_LISTS = ("feature_scales", "feature_units", "target_range")
# Left out where they are None: the bytes are those of versions that knew none of them.
_LATER_KEYS = ("horizon", "cost", "fringe", "joint", "feature_units", "target_range", "drift")
# Keys of the first parameters ever stored: all others may be missing.
_FIRST_KEYS = (
    set(_KINDS)
    - {"aggregation", "lifetime", "discount", "empty_prior", "domain", "clip"}
    - set(_LATER_KEYS)
)
_OF_TREES = {setting.name for setting in dataclasses.fields(TreeSettings)}
_OF_SYSTEMS = set(_KINDS) - _OF_TREES


@dataclass(frozen=True, init=False)
class ForestParameters(TreeSettings):
    """Parameters of a forest: all that its bytes depend on besides its rows.

    Parameters
    ----------
    algorithm : str
        A name of :data:`dmondrian.ensemble.settings.systems.SYSTEMS`.
    n_features, n_classes, seed : int
    system : System, optional
        Settings of the algorithm's system; by default those in ``settings``.
    **settings
        Further settings of :class:`TreeSettings`, and of the system, by name.

    Raises
    ------
    CorruptError
        If the algorithm is unknown, or settings are not those of its system.
    TypeError
        If a setting is unknown.
    """

    system: System = field(kw_only=True)

    def __init__(
        self,
        algorithm: str,
        n_features: int,
        n_classes: int,
        seed: int,
        system: System | None = None,
        **settings: Any,
    ) -> None:
        shared = {name: value for name, value in settings.items() if name in _OF_TREES}
        system_settings = {name: value for name, value in settings.items() if name not in _OF_TREES}
        super().__init__(algorithm, n_features, n_classes, seed, **shared)
        object.__setattr__(self, "system", _system_of(algorithm, system, system_settings))

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        """Take the state of a pickle; those of version 0.1.0 have all settings side by side."""
        if "system" in state:
            self.__dict__.update(state)
        else:
            ForestParameters.__init__(self, **state)

    def replace(self, **changes: Any) -> ForestParameters:
        """Return parameters with other settings, of the trees or of the system."""
        kept = {setting.name: getattr(self, setting.name) for setting in dataclasses.fields(self)}
        return ForestParameters(**{**kept, **changes})

    # Settings of systems; a system that lacks one has the value of System.

    @property
    def aggregation(self) -> str | None:
        """Rule by which a tree's prediction comes of its nodes; None for AMF."""
        return self.system.aggregation

    @property
    def alpha(self) -> float:
        """Dirichlet pseudo-count of a class."""
        return self.system.alpha

    @property
    def charge_opening(self) -> bool:
        """Whether the row that opens a leaf counts in the loss of that leaf."""
        return self.system.charge_opening

    @property
    def target_range(self) -> tuple[float, ...] | None:
        """Between which all labels lie, where that is known before the first."""
        return self.system.target_range

    @property
    def lifetime(self) -> Lifetime:
        """Until when trees are split, or splits count in predictions; None for no end."""
        return self.system.lifetime

    @property
    def cost(self) -> Cost:
        """Loss of a forest that ``minimises_loss``; others raise AttributeError."""
        return self.system.cost

    @property
    def joint(self) -> Joint:
        """Fit of a forest that ``learns_jointly``; others raise AttributeError."""
        return self.system.joint

    @property
    def fringe(self) -> FringeSettings:
        """Candidates of a forest that ``has_fringe``; others raise AttributeError."""
        return self.system.fringe

    @property
    def drift(self) -> DriftSettings | None:
        """Settings of a forest that ``follows_stream``; None for others."""
        return self.system.drift

    @property
    def following(self) -> DriftSettings:
        """The ``drift`` of a forest that ``follows_stream``; others raise AttributeError."""
        if self.drift is None:
            raise AttributeError("following: this forest does not follow the stream")
        return self.drift

    # What a forest can do.

    @property
    def follows_stream(self) -> bool:
        """Whether trees of all ages follow the stream, mixed by what they forecast: ``drift``."""
        return self.drift is not None

    @property
    def mixes_boosted_sets(self) -> bool:
        """Whether trees that follow the stream are mixed with sets of boosted trees."""
        return self.drift is not None and self.drift.boosted

    @property
    def mixes_scaled_trees(self) -> bool:
        """Whether scaled trees, whose feature scales are found on kept rows, are mixed too."""
        return self.drift is not None and self.drift.scaled

    @property
    def monotone(self) -> tuple[int, ...]:
        """1 or -1 for each feature with which forecasts rise or fall, 0 for others; or none."""
        return () if self.drift is None else self.drift.monotone or ()

    @property
    def has_boxes(self) -> bool:
        """Whether nodes store the range of their rows."""
        return self.system.has_boxes

    @property
    def has_fringe(self) -> bool:
        """Whether splits are chosen among candidates, which the leaves of the fringe have."""
        return self.system.has_fringe

    @property
    def has_gaussian_mixture(self) -> bool:
        """Whether a tree predicts a mixture of the Gaussians of its cells, with a variance."""
        return self.aggregation == "hierarchy" and self.n_classes == 0

    @property
    def has_custom_loss(self) -> bool:
        """Whether the loss is the user's own."""
        return self.minimises_loss and self.cost.is_own

    @property
    def has_decision(self) -> bool:
        """Whether a prediction is one number whose sign is the class: losses of two classes."""
        return self.minimises_loss and self.n_classes == 2

    @property
    def gives_proba(self) -> bool:
        """Whether trees predict class probabilities."""
        return self.n_classes > 0 and not self.minimises_loss and not self.learns_jointly

    @property
    def gives_label_variance(self) -> bool:
        """Whether cells store mean and second moment of the label, for its variance at a row."""
        return self.algorithm == "amf-regressor"

    @property
    def minimises_loss(self) -> bool:
        """Whether the value of a cell minimises a loss: ``cost``."""
        return self.system.minimises_loss

    @property
    def is_density(self) -> bool:
        """Whether rows have no labels, and predictions are densities."""
        return self.minimises_loss and self.cost.loss == "density"

    @property
    def levels(self) -> tuple[float, ...]:
        """Levels of the quantiles that are predicted; empty for none."""
        return self.cost.levels if self.minimises_loss else ()

    @property
    def learns_jointly(self) -> bool:
        """Whether values of the cells of all trees are fitted together: ``joint``."""
        return self.system.learns_jointly

    @property
    def aggregates_prunings(self) -> bool:
        """Whether a tree predicts by a mixture over all its prunings."""
        return self.system.aggregates_prunings

    @property
    def selects_lifetimes(self) -> bool:
        """Whether each tree chooses the lifetime of its predictions by the risks of its nodes."""
        return self.minimises_loss and self.cost.selection is not None

    @property
    def lifetime_grows(self) -> bool:
        """Whether predictions use more splits as rows come."""
        return self.system.lifetime_grows

    @property
    def splits_range(self) -> bool:
        """Whether splits are drawn in the range of the data, which rows outside extend."""
        return self.has_boxes and self.domain == "range"

    @property
    def is_leafwise(self) -> bool:
        """Whether a tree's prediction depends on the row's leaf alone, whatever its box."""
        return self.domain == "range" and not self.expected_extension

    @property
    def predicts_without_boxes(self) -> bool:
        """Whether no prediction looks at boxes; only distances to these do, and learning."""
        reads_boxes = self.follows_stream or self.is_density or self.learns_jointly
        return self.has_boxes and self.is_leafwise and not reads_boxes

    @property
    def n_outputs(self) -> int:
        """Numbers of a prediction: classes, or values of a cell."""
        return self.system.n_outputs(self)

    @property
    def n_stats(self) -> int:
        """Statistics of a node, in doubles."""
        return self.system.n_stats(self)

    @property
    def realised_lifetime(self) -> float:
        """The time up to which trees are split."""
        return self.system.realised_lifetime

    def lifetime_at(self, total_weight: float) -> float:
        """Return the lifetime of a prediction after rows of this total weight."""
        return self.system.lifetime_at(total_weight)

    def lifetimes_at(self, total_weights: np.ndarray) -> np.ndarray:
        """Return the lifetimes of predictions after rows of these total weights, float64 [n]."""
        if not self.lifetime_grows:
            return np.full(len(total_weights), self.lifetime_at(1.0))
        return np.array([self.lifetime_at(weight) for weight in total_weights.tolist()], np.float64)

    def check_labels(self, y: np.ndarray) -> None:
        """Refuse labels float64 [n] for which the loss is not defined.

        Raises
        ------
        DataError
            If there are any.
        """
        if self.minimises_loss:
            self.cost.check_labels(y)

    def forecasts(self, mean: np.ndarray) -> np.ndarray:
        """Return what metrics compare with labels, from the mean over trees.

        Parameters
        ----------
        mean : float64 [n, k]

        Returns
        -------
        float64 array of shape (n, K) or (n, 1)
            Class probabilities (of the hinge: shares of the trees' signs), or the predicted mean
            label; of quantiles the one whose level is nearest to 1/2.
        """
        return self.system.forecasts(mean)

    def to_json(self) -> dict[str, Any]:
        """Return the parameters as a JSON-able dict."""
        values: dict[str, Any] = {
            name: getattr(self if name in _OF_TREES else self.system, name, None) for name in _KINDS
        }
        values["lifetime"] = lifetime_to_json(self.lifetime)
        for name in _LISTS:
            values[name] = None if values[name] is None else list(values[name])
        for name in _PARTS:
            values[name] = None if values[name] is None else values[name].to_json()
        absent = {name for name in _LATER_KEYS if values[name] is None}
        return {name: value for name, value in values.items() if name not in absent}

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> ForestParameters:
        """Return the parameters of :meth:`to_json`, checked.

        Raises
        ------
        CorruptError
            If a key is missing or unknown, or a value has the wrong type or range.
        """
        if not isinstance(values, dict) or not _FIRST_KEYS <= set(values) <= set(_KINDS):
            raise CorruptError(f"forest parameters should have the keys {sorted(_KINDS)}")
        for key, value in values.items():
            is_bool = isinstance(value, bool)
            if not isinstance(value, _KINDS[key]) or (is_bool and bool not in _KINDS[key]):
                shown = f"{str(value)[:80]!r}"
                raise CorruptError(f"forest parameter {key} has an impossible value {shown}")
        settings = {**values, "lifetime": lifetime_from_json(values.get("lifetime"))}
        for name in _LISTS:
            if settings.get(name) is not None:
                if any(type(value) is not float for value in settings[name]):
                    raise CorruptError(f"{name} should be numbers with a decimal point")
                settings[name] = tuple(settings[name])
        for name, read in _PARTS.items():
            if settings.get(name) is not None:
                settings[name] = read.from_json(settings[name])
        parameters = cls(**settings)
        parameters.check()
        return parameters

    def faults(self) -> Iterator[str]:
        """Yield the names of settings that are out of range, alone or together."""
        yield from super().faults()
        is_classifier = SYSTEMS[self.algorithm][1]
        if (self.n_classes > 0) != is_classifier:
            yield "n_classes"
        yield from self.system.faults(self)

    def check(self) -> None:
        """Raise :class:`CorruptError` where values are out of range together."""
        names = list(dict.fromkeys(self.faults()))
        if names:
            raise CorruptError(
                f"forest parameters are out of range, see {', '.join(names)}: {str(self)[:400]}"
            )
        if self.is_density and self.lifetime_at(1.0) == np.inf:
            # Cells without an end are points, and all rows would lie in empty ones.
            raise CorruptError(
                "forest parameters of a density have no lifetime: neither a lifetime, nor a "
                "horizon, nor one that held-out rows chose; restore the model from a copy, or "
                "train it anew"
            )


def _system_of(algorithm: str, system: System | None, settings: dict[str, Any]) -> System:
    """Return the settings of an algorithm's system: those given by name, and else ``system``'s."""
    if algorithm not in SYSTEMS:
        raise CorruptError(
            f"forest parameters are of an unknown algorithm {str(algorithm)[:80]!r}; expected one "
            f"of {sorted(SYSTEMS)}"
        )
    kind = SYSTEMS[algorithm][0]
    if system is not None and type(system) is not kind:
        raise CorruptError(
            f"forest parameters of {algorithm} should have settings of {kind.__name__}, they have "
            f"those of {type(system).__name__}"
        )
    names = {setting.name for setting in dataclasses.fields(kind)}  # type: ignore[arg-type]  # all are
    for name, value in settings.items():
        if name not in _OF_SYSTEMS:
            raise TypeError(f"forest parameters have no {name!r}; expected {sorted(_KINDS)}")
        absent = getattr(kind, name, None)
        if name not in names and value != absent:
            raise CorruptError(
                f"forest parameters of {algorithm} have no {name}: expected {absent!r}, got "
                f"{str(value)[:80]}"
            )
    given = {name: value for name, value in settings.items() if name in names}
    if system is not None:
        return dataclasses.replace(system, **given)  # type: ignore[type-var]  # as above
    missing = [
        setting.name
        for setting in dataclasses.fields(kind)  # type: ignore[arg-type]
        if setting.default is dataclasses.MISSING and given.get(setting.name) is None
    ]
    if missing:
        raise CorruptError(f"forest parameters of {algorithm} should have {', '.join(missing)}")
    return kind(**given)


def policies(p: ForestParameters) -> Policies:
    """Return the policies of ``p``'s algorithm."""
    return p.system.policies(p)
