"""`python -m tidemill.services.launcher` is the `tidemill` command."""

from __future__ import annotations

import sys

from tidemill.services.launcher.cli import main

if __name__ == "__main__":
    sys.exit(main())
