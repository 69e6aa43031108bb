"""The output of kustomize and Helm, as objects."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from support import gobuilt

Objects = dict[tuple[str, str, str], dict[str, Any]]
"""By kind, namespace and name."""


def run_kustomize(overlay: Path) -> str:
    """Return the manifests that `kubectl apply -k` sends. Skips the test if neither kubectl nor
    kustomize is available.
    """
    if shutil.which("kubectl"):
        command = ["kubectl", "kustomize"]
    else:
        try:
            command = [str(gobuilt.program("kustomize")), "build"]
        except gobuilt.Missing as missing:
            pytest.skip(
                f"{missing}; `PYTHONPATH=tests .venv/bin/python -m support.gobuilt kustomize` says "
                "more"
            )
    return subprocess.run(
        [*command, str(overlay)], capture_output=True, text=True, check=True
    ).stdout


def objects(text: str) -> Objects:
    """Return the objects of a text. Raises `AssertionError` for duplicates."""
    documents = [document for document in yaml.safe_load_all(text) if document]
    by_name = {
        (
            document["kind"],
            document["metadata"].get("namespace", ""),
            document["metadata"]["name"],
        ): document
        for document in documents
    }
    assert len(by_name) == len(documents), "duplicate objects"
    return by_name
