"""Each policy is held to a contract."""

from __future__ import annotations

import importlib
import pkgutil
from types import ModuleType

import pytest

import dmondrian.growth
import dmondrian.losses
import dmondrian.rules
import dmondrian.stats

# Of each package of policies, the module of tests with the subclasses of contracts.
PACKAGES = {
    dmondrian.growth: "tests.growth.test_growths",
    dmondrian.losses: "tests.losses.test_losses",
    dmondrian.rules: "tests.rules.test_rules",
    dmondrian.stats: "tests.stats.test_statistics",
}


def policies_of(package: ModuleType) -> set[type]:
    """Return the NamedTuples that a package defines."""
    names = [f"{package.__name__}.{found.name}" for found in pkgutil.iter_modules(package.__path__)]
    return {
        value
        for name in names
        for value in vars(importlib.import_module(name)).values()
        if isinstance(value, type) and hasattr(value, "_fields") and value.__module__ == name
    }


@pytest.mark.parametrize("package", PACKAGES, ids=lambda package: package.__name__)
def test_each_policy_has_a_contract(package: ModuleType) -> None:
    tests = vars(importlib.import_module(PACKAGES[package])).items()
    # pytest collects classes of such names alone.
    held = {value.policy for name, value in tests
            if name.startswith("Test") and hasattr(value, "policy")}  # fmt: skip
    policies = policies_of(package)
    assert len(policies) > 2
    assert policies - held == set(), "subclass a contract of tests/contracts for each"
