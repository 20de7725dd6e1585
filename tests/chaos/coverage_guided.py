"""Calls of every RPC that reach ever more of the servers' code: atheris, which is libFuzzer for Python (`make fuzz`).

python -m tests.chaos.coverage_guided FOLDER [-runs=100000] [-max_total_time=600] [other options of libFuzzer]

FOLDER keeps what was found to reach something new, so that the next run continues there, and in `crash-...` the bytes
of a call that was answered wrongly: `python -m tests.chaos.coverage_guided FOLDER FILE` makes it again.
"""

from __future__ import annotations

import importlib
import logging
import sys
import tempfile
from pathlib import Path

import atheris
import structlog


def main() -> None:
    """Fuzz as the options say; libFuzzer ends the process."""
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    folder = Path(sys.argv[1])
    found = folder / "found"
    found.mkdir(parents=True, exist_ok=True)
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    with atheris.instrument_imports(include=["tidemill"]):
        fuzz_bytes = importlib.import_module("tests.chaos.fuzz_bytes")
    with tempfile.TemporaryDirectory(prefix="tidemill-fuzz-") as stored, fuzz_bytes.Target(Path(stored)) as target:
        for path in target.corpus.paths:
            good = fuzz_bytes.Case(path, tuple(target.corpus.raw(path)))
            (found / f"good-{path.rpartition('/')[2]}").write_bytes(fuzz_bytes.bytes_of(good))
        again = [option for option in sys.argv[2:] if not option.startswith("-")]
        options = [option for option in sys.argv[2:] if option.startswith("-")]
        command = [sys.argv[0], f"-artifact_prefix={folder}/", "-rss_limit_mb=4096", "-max_len=8192", *options]
        atheris.Setup([*command, *(again or [str(found)])], target)
        atheris.Fuzz()


if __name__ == "__main__":
    main()
