"""The one cluster that the tests of containers start."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.compose.engine import NoEngine, running_engine
from tests.compose.helm import Helm, running_helm
from tests.compose.manifests import copy_manifests
from tests.compose.stack import Stack
from tests.compose.stand_ins import image_settings


@pytest.fixture(scope="module")
def stack() -> Iterator[Stack]:
    """The cluster of the shipped files, built and started with two actors; nothing of it is left afterwards.

    Where there is no Docker engine the tests are skipped and say why, unless TIDEMILL_REQUIRE_ENGINE is set.
    """
    with ExitStack() as resources:
        try:
            engine = resources.enter_context(running_engine())
            cluster = Stack(engine, image_settings(engine))
        except NoEngine as reason:
            if os.environ.get("TIDEMILL_REQUIRE_ENGINE"):
                raise
            pytest.skip(str(reason))
        resources.callback(cluster.remove)
        # The learner's first: torch is installed in one stage while another builds the wheel. Compose would begin with
        # `certs`, which waits for the wheel and has no torch.
        cluster.compose("build", "learner", bound_s=900)
        images = ("certs", "replay-0", "paramserver", "actor", "evaluator", "inference")  # replay-1 shares replay-0's
        cluster.compose("--profile", "inference", "build", *images, bound_s=900)
        cluster.up(actors=2)
        yield cluster


@pytest.fixture(scope="module")
def kubernetes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the manifests for Kubernetes, with the files that components/secrets says to make."""
    return copy_manifests(tmp_path_factory.mktemp("kubernetes"))


@pytest.fixture(scope="module")
def helm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Helm]:
    """Helm, as one process for all charts of a module."""
    with running_helm(tmp_path_factory.mktemp("helm")) as helm:
        yield helm
