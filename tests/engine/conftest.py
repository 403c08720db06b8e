"""Fixtures of the tests of launchers."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support.launched import weights_folder

if TYPE_CHECKING:
    from .ray_cluster import Nodes


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """The folder of a model, with weights that have a name."""
    return weights_folder(tmp_path / "model", "the first")


@pytest.fixture(scope="module")
def cluster() -> "Iterator[Nodes]":
    """Two nodes of Ray, each with room for one engine."""
    from .ray_cluster import cluster_of

    with cluster_of(2) as nodes:
        yield nodes
