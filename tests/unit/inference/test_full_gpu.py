"""An inference service whose GPU is full."""

from __future__ import annotations

from typing import NoReturn
from unittest.mock import Mock

import pytest
import torch

from tests.support.naming import naming
from tidemill.config.load import from_document
from tidemill.config.sections import InferenceConfig
from tidemill.envs.make import spec_of
from tidemill.errors import FatalError
from tidemill.process import StopEvent
from tidemill.services.inference import __main__ as service


@pytest.mark.parametrize("step", ["make_policy", "serve"])
def test_service_that_a_full_gpu_refuses_says_what_is_free(step: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """And what to do with its own settings, in one line: while it makes the policy, and in a forward pass."""

    def refuse(*_: object) -> NoReturn:
        raise torch.OutOfMemoryError("CUDA out of memory.\nTried to allocate 2.00 GiB.")

    monkeypatch.setattr(service, "make_policy", Mock())
    monkeypatch.setattr(service, step, refuse)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (2**28 * device.index, 79 * 2**30))
    config = from_document(InferenceConfig, {"env": {"id": "CartPole-v1"}, "agent": {"algorithm": "dqn"}})
    named = naming("0.5 79.0 GiB inference.max_batch inference.device cpu another GPU")
    with pytest.raises(FatalError, match=named) as raised:
        service.compute(config, spec_of(config.env), torch.device("cuda", 2), StopEvent())
    assert "\n" not in str(raised.value)
