"""The C++ compiler that tests on pretended GPUs need."""

from __future__ import annotations

import os

import pytest

from tidemill.rehearsal.library import compiler


def require_compiler() -> None:
    """Skip the test without a C++ compiler, or fail it if TIDEMILL_REQUIRE_REHEARSAL is set."""
    if compiler() is None:
        if os.environ.get("TIDEMILL_REQUIRE_REHEARSAL"):
            pytest.fail("there is no C++ compiler")
        pytest.skip("there is no C++ compiler")
