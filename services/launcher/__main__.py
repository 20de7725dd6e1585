"""`python -m tidemill.services.launcher` is the `tidemill` command."""

from __future__ import annotations

import sys

from tidemill import interrupts


def main() -> int:
    """Import and run the command; Ctrl-C during the imports is silent."""
    interrupts.end_silently()
    from tidemill.services.launcher import cli

    return cli.main()


if __name__ == "__main__":
    sys.exit(main())
