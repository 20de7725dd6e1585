"""torchrun as `nohup` starts it: without what a closing terminal sends."""

from __future__ import annotations

import signal
import sys

from tidemill.services.learner.torchrun import main

if __name__ == "__main__":
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    sys.exit(main())
