"""The bounds on streaming calls in progress."""

from __future__ import annotations

import pytest

from tests.support.naming import because, naming
from tidemill.errors import Reason, ResourceExhausted
from tidemill.rpc.open_calls import OpenCalls


async def test_caller_with_its_most_calls_leaves_the_others_theirs() -> None:
    """It is told the limit of one caller; a call that ends makes room, and an unknown caller is not kept."""
    calls = OpenCalls("inference service", 3, "a.most", most_each=2, setting_each="a.most_each")
    with calls.running("10.0.0.1"):
        with calls.running("10.0.0.1"):
            with (
                pytest.raises(
                    ResourceExhausted, match=naming("10.0.0.1 2 (a.most_each)"), check=because(Reason.TOO_MANY_CALLS)
                ),
                calls.running("10.0.0.1"),
            ):
                pass
            with calls.running("10.0.0.2"):
                pass
        with calls.running("10.0.0.1"):
            pass
    assert not calls._callers
