"""Which actors an inference service can act for."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from tests.support.batches import CASES
from tests.support.naming import naming
from tidemill.errors import ConfigError
from tidemill.rl.agents.build import build_policy
from tidemill.rl.agents.split_policy import check_remote


def _check(name: str, **changes: Any) -> None:  # noqa: ANN401 - flags and a number
    settings = {"prioritized": False, "max_policy_lag": -1, "keeps_params": False} | changes
    check_remote(build_policy(*CASES[name]), algorithm=name, **settings)


def test_policy_with_the_two_methods_is_taken() -> None:
    """So any run of the project may have its network passed through elsewhere: all of its policies have them."""
    _check("sac")
    _check("sac", prioritized=True, keeps_params=True)


def test_policy_without_the_two_methods_is_refused() -> None:
    """One's own algorithm may lack them; the message names them, and only what is missing."""
    policy: Any = object()
    with pytest.raises(ConfigError, match=naming("'own' forward choose")):
        check_remote(policy, prioritized=False, max_policy_lag=-1, keeps_params=True, algorithm="own")
    policy = SimpleNamespace(forward=print, choose=print)
    with pytest.raises(ConfigError, match=naming("'own' priority_uses_params")) as refused:
        check_remote(policy, prioritized=False, max_policy_lag=-1, keeps_params=True, algorithm="own")
    assert "forward" not in str(refused.value)


def test_bound_on_the_policy_lag_is_refused() -> None:
    """The service takes each version as it comes."""
    with pytest.raises(ConfigError, match=naming("learner.max_policy_lag 2")):
        _check("dqn", max_policy_lag=2, keeps_params=True)


@pytest.mark.parametrize("name, is_refused", [("dqn", False), ("r2d2", False), ("sac", True), ("td3", True)])
def test_priorities_that_need_parameters_ask_for_the_fallback(name: str, is_refused: bool) -> None:
    """Those of DQN and R2D2 need the network's output alone."""
    if not is_refused:
        _check(name, prioritized=True)
        return
    with pytest.raises(ConfigError, match=naming("actor.inference_fallback 'local'")):
        _check(name, prioritized=True)
