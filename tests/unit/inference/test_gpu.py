"""An inference service whose GPU is full, or lost."""

from __future__ import annotations

from pathlib import Path
from typing import NoReturn
from unittest.mock import Mock

import pytest
import torch

from tests.support.naming import naming
from tidemill.config.load import from_document
from tidemill.config.sections import InferenceConfig
from tidemill.envs.make import spec_of
from tidemill.errors import ConfigError, FatalError
from tidemill.process import StopEvent
from tidemill.services.inference import __main__ as service


@pytest.fixture(name="config")
def _config(tmp_path: Path) -> InferenceConfig:
    """Settings of a service that asks for a GPU."""
    run = {"root": str(tmp_path), "name": "test"}
    settings = {"env": {"id": "CartPole-v1"}, "agent": {"algorithm": "dqn"}, "inference": {"device": "cuda"}}
    return from_document(InferenceConfig, {**settings, "run": run})


@pytest.mark.parametrize("step", ["make_policy", "serve"])
def test_service_that_a_full_gpu_refuses_says_what_is_free(
    step: str, config: InferenceConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And what to do with its own settings, in one line: while it makes the policy, and in a forward pass."""

    def refuse(*_: object) -> NoReturn:
        raise torch.OutOfMemoryError("CUDA out of memory.\nTried to allocate 2.00 GiB.")

    monkeypatch.setattr(service, "named_device", lambda *_, **__: torch.device("cuda", 2))
    for part in ("use_near_processors", "make_policy"):
        monkeypatch.setattr(service, part, Mock())
    monkeypatch.setattr(service, step, refuse)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (2**28 * device.index, 79 * 2**30))
    named = naming("0.5 79.0 GiB inference.max_batch inference.device cpu another GPU")
    with pytest.raises(FatalError, match=named) as raised:
        service.compute(config, spec_of(config.env), StopEvent())
    assert "\n" not in str(raised.value)


def test_service_of_a_run_that_has_trained_is_tried_again_without_its_gpu(
    config: InferenceConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A new run asks for what was never there, and ends."""
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    named = naming("inference.device 'cuda' none 1 GPUs")
    with pytest.raises(ConfigError, match=named):
        service.compute(config, spec_of(config.env), StopEvent())
    (config.run.folder / "checkpoints").mkdir(parents=True)
    with pytest.raises(FatalError, match=named):
        service.compute(config, spec_of(config.env), StopEvent())
