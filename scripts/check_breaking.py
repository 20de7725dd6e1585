"""Check that no change to protos/ breaks a peer that speaks the wire contract as it was frozen.

The contract is `protos/v1.binpb`, a compiled image of the protos. What is added later becomes part of it with
`python -m scripts.check_breaking --freeze`, at a release.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FROZEN = ROOT / "protos" / "v1.binpb"


def buf(*arguments: str) -> int:
    """Run buf in the repository; return its exit code."""
    command = [str(Path(sys.executable).parent / "buf"), *arguments]
    return subprocess.run(command, cwd=ROOT, check=False).returncode


def main() -> int:
    """Compare the protos with the frozen contract, or freeze them; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--freeze", action="store_true", help="take up what was added, if nothing is broken")
    freeze = parser.parse_args().freeze
    if not FROZEN.exists() and not freeze:
        print(f"{FROZEN.relative_to(ROOT)} is missing")
        return 1
    broken = FROZEN.exists() and buf("breaking", "--against", str(FROZEN), "--against-config", "buf.yaml")
    if broken or not freeze:
        return broken
    return buf("build", "--as-file-descriptor-set", "--exclude-source-info", "--output", str(FROZEN))


if __name__ == "__main__":
    sys.exit(main())
