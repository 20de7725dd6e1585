"""Check that no change to protos/ breaks a peer that still speaks the last version.

The last version is the newest tag HEAD can reach. Where there is none (before the first release, in a shallow clone,
without git), there is nothing to break: the check passes and says so.
"""

from __future__ import annotations

import io
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
_PATHS = ("protos", "buf.yaml")


def _git(*arguments: str) -> bytes | None:
    """Return what git prints, or None where it fails."""
    # A checkout that another user owns (a container's mount) is still ours to read.
    command = ["git", "-C", str(ROOT), "-c", "safe.directory=*", *arguments]
    try:
        return subprocess.run(command, check=True, capture_output=True).stdout
    except (subprocess.CalledProcessError, FileNotFoundError):
        return None


def baseline() -> str | None:
    """Return the tag to compare with; None where there is none."""
    tag = _git("describe", "--tags", "--abbrev=0")
    return None if tag is None else tag.decode().strip()


def main() -> int:
    """Run `buf breaking` against the last version; return its exit code."""
    tag = baseline()
    archive = None if tag is None else _git("archive", "--format=zip", tag, "--", *_PATHS)
    if archive is None:
        print(f"no earlier protos to compare with (baseline {tag})")
        return 0
    buf = Path(sys.executable).parent / "buf"
    with tempfile.TemporaryDirectory() as folder:
        zipfile.ZipFile(io.BytesIO(archive)).extractall(folder)
        command = [str(buf), "breaking", "--against", folder, "--against-config", str(ROOT / "buf.yaml")]
        return subprocess.run(command, cwd=ROOT, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
