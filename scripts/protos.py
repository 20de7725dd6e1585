"""Generate the Python stubs of protos/, or check that the committed ones are up to date.

    python -m scripts.protos            writes tidemill/<service>/v1/*_pb2*
    python -m scripts.protos --check    fails on a difference

A proto's path under protos/ is its package, and the stubs land in the folder of the same path, so they import
each other without being rewritten.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PROTOS = ROOT / "protos"
# Concrete: a servicer may leave out an RPC, which then answers UNIMPLEMENTED.
_OUTPUTS = (
    "python_out=",
    "grpc_python_out=",
    "mypy_out=quiet:",
    "mypy_grpc_out=quiet,generate_concrete_servicer_stubs:",
)
_STUBS = ("*_pb2.py", "*_pb2.pyi", "*_pb2_grpc.py", "*_pb2_grpc.pyi")


def generate(folder: Path) -> None:
    """Write the stubs of every proto below `folder`.

    Raises:
        subprocess.CalledProcessError: protoc refused a proto; its reason is on standard error.
    """
    plugins = Path(sys.executable).parent
    command = [sys.executable, "-m", "grpc_tools.protoc", f"-I{PROTOS}"]
    command += [f"--plugin={name}={plugins / name}" for name in ("protoc-gen-mypy", "protoc-gen-mypy_grpc")]
    command += [f"--{output}{folder}" for output in _OUTPUTS]
    command += [str(path) for path in sorted(PROTOS.rglob("*.proto"))]
    subprocess.run(command, check=True)


def stubs(folder: Path) -> dict[str, bytes]:
    """Return the generated files below `folder`, by path relative to it."""
    found = (path for pattern in _STUBS for path in (folder / "tidemill").rglob(pattern))
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in found}


def drift() -> list[str]:
    """Return the committed stubs that differ from what protos/ gives, sorted."""
    with tempfile.TemporaryDirectory() as folder:
        generate(Path(folder))
        fresh, committed = stubs(Path(folder)), stubs(ROOT)
    return sorted(name for name in fresh.keys() | committed.keys() if fresh.get(name) != committed.get(name))


def main() -> int:
    """Generate or check, as the command line says; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="compare with the committed stubs, write nothing")
    if not parser.parse_args().check:
        generate(ROOT)
        return 0
    changed = drift()
    for name in changed:
        print(f"{name} is not what protos/ gives: run `make protos` and commit the result")
    return 1 if changed else 0


if __name__ == "__main__":
    sys.exit(main())
