"""What tests of whole clusters start from: the config of a run, and a cluster without a learner."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import yaml

from tests.support.forked_service import note_children
from tests.support.small_run import small_run

if TYPE_CHECKING:
    from tests.support.learner_cluster import LearnerCluster


@pytest.fixture(autouse=True)
def _children_of_tests_before() -> None:
    """What other tests of this process have left running, as multiprocessing does, is not this one's."""
    note_children()


@pytest.fixture
def config_file(tmp_path: Path) -> Path:
    """A config of a run that learns nothing worth knowing, quickly."""
    file = tmp_path / "small.yaml"
    settings = small_run(
        run={"name": "small", "root": str(tmp_path / "runs")},
        learner={"checkpoint_every_s": 1.0},
        actor={"max_env_steps_per_s": 400.0},
        launcher={"view_every_s": 0.2, "restart_backoff_s": 0.1, "start_timeout_s": 300.0},
    )
    file.write_text(yaml.safe_dump(settings))
    return file


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LearnerCluster]:
    """A cluster that is fed, with no learner yet."""
    from tests.support.learner_cluster import learner_cluster  # imports torch, which most files here do without

    with learner_cluster(tmp_path) as cluster:
        cluster.start_replay()
        cluster.start_params()
        cluster.feed()
        yield cluster
