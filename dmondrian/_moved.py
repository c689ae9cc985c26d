"""Modules that pickles of version 0.1.0 name by the places that they had then.

A pickled estimator holds classes by module and name. Where such a module is imported and is not
there, the one that it became is given in its place.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

PLACES = {
    "dmondrian.cost": "dmondrian.ensemble.settings.loss_settings",
    "dmondrian.fringe": "dmondrian.ensemble.settings.fringe_settings",
    "dmondrian.joint": "dmondrian.ensemble.settings.kernel_settings",
    "dmondrian.kernel": "dmondrian.joint_fit",
    "dmondrian.kernel.path": "dmondrian.joint_fit.lifetime_sweep",
    "dmondrian.lifetime": "dmondrian.ensemble.settings.lifetime",
    "dmondrian.own_loss": "dmondrian.forest.custom_loss",
    "dmondrian.parameters": "dmondrian.ensemble.settings.parameters",
    "dmondrian.selection": "dmondrian.ensemble.lifetime_selection",
}


class _Moved(MetaPathFinder, Loader):
    """Finds a module at its old place."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return how to import a module of :data:`PLACES`."""
        return ModuleSpec(name, self, is_package=True) if name in PLACES else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """Return a module with all that the one at the new place has."""
        module = ModuleType(spec.name)
        module.__dict__.update(import_module(PLACES[spec.name]).__dict__)
        return module

    def exec_module(self, module: ModuleType) -> None:
        """Do nothing: the module is there."""


def find_moved_modules() -> None:
    """Let Python look here last for a module that it does not find."""
    if not any(isinstance(finder, _Moved) for finder in sys.meta_path):
        sys.meta_path.append(_Moved())
