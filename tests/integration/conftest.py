"""The cluster that tests of a learner start from."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.support.learner_cluster import LearnerCluster


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LearnerCluster]:
    """A cluster whose replay service and parameter server serve."""
    from tests.support.learner_cluster import learner_cluster  # imports torch, which most folders here do without

    with learner_cluster(tmp_path) as cluster:
        cluster.start_replay()
        cluster.start_params()
        yield cluster
