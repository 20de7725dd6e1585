"""torchrun that would wait an hour for the ranks that are stuck, not 30 s, if nothing else shortened it."""

from __future__ import annotations

import signal
import sys
from typing import Any

from torch.distributed.elastic.multiprocessing.api import SubprocessContext

from tidemill.services.learner.torchrun import main

_TORCHS_OWN_S, _AN_HOUR_S = 30, 3600
_close = SubprocessContext.close


def _close_late(ranks: Any, death_sig: signal.Signals | None = None, timeout: int = _TORCHS_OWN_S) -> None:  # noqa: ANN401
    _close(ranks, death_sig, _AN_HOUR_S if timeout == _TORCHS_OWN_S else timeout)


if __name__ == "__main__":
    SubprocessContext.close = _close_late  # type: ignore[assignment]
    sys.exit(main())
