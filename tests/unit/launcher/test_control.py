"""`tidemill status` and `ctl` where no learner answers."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from tests.support.naming import naming
from tidemill.errors import Unavailable
from tidemill.services.launcher.commands.control import ctl, status


@pytest.mark.parametrize("command, words", [(status, []), (ctl, ["pause"])])
def test_learner_that_does_not_answer_is_named(command: Callable[[Sequence[str]], int], words: list[str]) -> None:
    """As one of a cluster of containers that is starting; what gRPC says comes last."""
    with pytest.raises(Unavailable, match=naming("learner 127.0.0.1:1")):
        command([*words, "--learner", "127.0.0.1:1"])
