"""Build the distribution, install its wheel into a clean environment, and use it from a folder of hostile names.

    python -m scripts.release_rehearsal [--dependencies-of .venv] [--train]
    python -m scripts.release_rehearsal --base [--python PYTHON ...]

The folder has files and packages called `services`, `tests`, `configs`, `types.py` and `queue.py`, as a user's own may:
none of them may stand in for ours or the standard library's, and the user's environment module there is found.

With `--manylinux` the wheel is one of auditwheel's, for every Linux of its machine, and a pure one is built beside it.

With `--base` the tutorial of docs/replay.md is followed instead, command by command, in a clone of the repository and
with each Python given: the base install has none of what learning needs, and is of a bounded size.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import platform
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import venv
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
_TRAIN_S = 300
_INSTALL_S = 300
_ABSENT = ("torch", "gymnasium", "matplotlib", "tensorboard")
_MAX_MB = 93  # it has 92 on Python 3.11, 87 on 3.12 to 3.14; NumPy and gRPC alone are 76 (docs/replay.md)
_TUTORIAL_ADDRESS = "127.0.0.1:7401"
_HOSTILE = (
    "services/__init__.py",
    "tests/__init__.py",
    "configs/__init__.py",
    "tidemill_tools.py",
    "types.py",
    "queue.py",
)
_OWN_ENV = '''"""A user's own environment."""
import gymnasium


def make():
    """Return CartPole."""
    return gymnasium.make("CartPole-v1").unwrapped
'''


def build(folder: Path) -> Path:
    """Build sdist and wheel into `folder` from a copy of the tracked files, and once more elsewhere; return the wheel.

    Raises:
        RuntimeError: They differ from those of the second build.
    """
    _build_once(folder)
    with tempfile.TemporaryDirectory(prefix="tidemill-again-") as again:
        _build_once(Path(again))
        first, second = _digests(folder), _digests(Path(again))
    if first != second:
        raise RuntimeError(f"two builds differ: {first}, {second}")
    print("\n".join(f"{digest}  {name}" for name, digest in first.items()), flush=True)
    (wheel,) = folder.glob("*.whl")
    return wheel


def build_for_every_linux(folder: Path) -> Path:
    """Build a manylinux wheel with the kernel, and a wheel without it for every platform; return the first.

    Raises:
        RuntimeError: The kernel needs a newer C library than those Linuxes have that the wheel is meant for.
    """
    built = folder / "built"
    for kernel in ("1", "0"):
        _build_once(built / kernel, TIDEMILL_KERNEL=kernel)
    tools = ROOT / ".venv-extras"
    environment = os.environ | {"PYTHONPATH": str(tools), "PATH": f"{tools / 'bin'}:{os.environ['PATH']}"}
    environment["SOURCE_DATE_EPOCH"] = _time_of_commit()
    (own,) = (built / "1").glob("*.whl")
    command = [sys.executable, "-m", "auditwheel", "repair", "--plat", f"manylinux2014_{platform.machine()}", str(own)]
    done = subprocess.run(
        [*command, "--wheel-dir", str(folder)], env=environment, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise RuntimeError(f"auditwheel: {done.stderr}")
    for file in ((built / "0").glob("*.whl"), (built / "0").glob("*.tar.gz")):
        shutil.copy(next(file), folder)
    (wheel,) = folder.glob("*manylinux*.whl")
    return wheel


def _build_once(folder: Path, **variables: str) -> None:
    source = folder / "source"
    subprocess.run(["git", "clone", "--quiet", "--no-hardlinks", str(ROOT), str(source)], check=True)
    environment = os.environ | {"SOURCE_DATE_EPOCH": _time_of_commit()} | variables
    for hook in ("build_sdist", "build_wheel"):
        code = f"import setuptools.build_meta as b; print(b.{hook}({str(folder)!r}))"
        command = [sys.executable, "-c", code]
        subprocess.run(command, cwd=source, check=True, stdout=subprocess.DEVNULL, env=environment)


def _time_of_commit() -> str:
    command = ["git", "log", "-1", "--format=%ct"]
    return subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout.strip()


def _digests(folder: Path) -> dict[str, str]:
    """Return the SHA-256 of each built file, by name."""
    files = sorted((*folder.glob("*.whl"), *folder.glob("*.tar.gz")))
    return {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in files}


def install(wheel: Path, folder: Path, dependencies_of: Path | None) -> Path:
    """Install a wheel into a new environment; return its `bin`.

    Args:
        wheel: What to install.
        folder: Where the environment is made.
        dependencies_of: An environment whose packages serve as dependencies, so that nothing is downloaded; None
            installs them.
    """
    venv.create(folder, with_pip=True, symlinks=True)
    python = folder / "bin" / "python"
    pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    if dependencies_of is None:
        subprocess.run([*pip, f"{wheel}[learn]"], check=True)
        return folder / "bin"
    subprocess.run([*pip, "--no-deps", str(wheel)], check=True)
    (packages,) = dependencies_of.glob("lib/python3.*/site-packages")
    (own,) = folder.glob("lib/python3.*/site-packages")
    (own / "dependencies.pth").write_text(f"{packages.resolve()}\n")
    return folder / "bin"


def make_hostile(folder: Path) -> None:
    """Fill a folder with names that clash with ours and the standard library's, and an environment of the user's."""
    for name in _HOSTILE:
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text('raise RuntimeError(f"{__file__} was imported in place of another module")\n')
    (folder / "own_env.py").write_text(_OWN_ENV)


def commands(*, train: bool) -> list[list[str]]:
    """Arguments of each `tidemill` command that is run in the hostile folder."""
    short = [
        *("train", "--env.id", "own_env:make", "--env.max-evaluation-steps", "200", "--agent.algorithm", "dqn"),
        *("--agent.network", "mlp", "--run.name", "rehearsal", "--run.max-learner-steps", "200"),
        *("--table.min-size", "200", "--evaluator.episodes", "2"),
    ]
    passed_on = [["export", "runs/rehearsal", "--out", "policy"], ["evaluate", "policy", "--trust", "--episodes", "2"]]
    preset = ["train", "--config", "cartpole_dqn", "--run.max-learner-steps", "200", "--evaluator.episodes", "2"]
    plan = ["plan", "--cores", "4", "--env", "ALE/Pong-v5"]
    plain = [["--version"], ["--help"], ["train", "--config", "quickstart", "--help"], ["doctor"], plan]
    return [*plain, preset, short, *passed_on] if train else plain


def rehearse_base(python: str, folder: Path) -> str:
    """Follow the tutorial of docs/replay.md in a clone with one Python; return a line on what was installed.

    Raises:
        RuntimeError: A command failed or printed something else, or the installation is not what it should be.
    """
    clone, named = folder / "clone", folder / "bin"
    subprocess.run(["git", "clone", "--quiet", "--no-hardlinks", str(ROOT), str(clone)], check=True)
    named.mkdir()
    (named / "python3").symlink_to(python)
    page = (clone / "docs" / "replay.md").read_text().replace(_TUTORIAL_ADDRESS, f"127.0.0.1:{_free_port()}")
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    environment["PATH"] = f"{named}:{environment['PATH']}"
    blocks = re.findall(r"^```(console|python)\n(.*?)^```", page.partition("## Concepts")[0], re.MULTILINE | re.DOTALL)
    with _server_of(clone, environment) as start_server:
        for kind, text in blocks:
            if kind == "python":
                (clone / text.split()[1]).write_text(text)
                continue
            for command, output in re.findall(r"^\$ (.*)\n((?:[^$].*\n)*)", text, re.MULTILINE):
                print(f"$ {command}", flush=True)
                if "tidemill replay" in command:
                    start_server(command)
                else:
                    _follow(command, output, clone, environment)
        start_server("")  # killed and started again, as the tutorial says
        _follow("env/bin/python train.py", "(32, 3, 3)\n", clone, environment)
    return _installed(clone / "env")


@contextmanager
def _server_of(clone: Path, environment: dict[str, str]) -> Iterator[Callable[[str], None]]:
    """Yield what starts the server by a command; an empty one kills it and starts it again."""
    running: list[tuple[str, subprocess.Popen[bytes]]] = []

    def stop() -> None:
        for _, process in running:
            process.send_signal(signal.SIGKILL)
            process.wait()

    def start(command: str) -> None:
        command = command or running[0][0]
        stop()
        with (clone / "server.log").open("wb") as log:
            running[:] = [(command, subprocess.Popen(command.split(), cwd=clone, env=environment, stderr=log))]
        deadline_s = time.monotonic() + _INSTALL_S
        while b"address=" not in (clone / "server.log").read_bytes():
            if time.monotonic() > deadline_s or running[0][1].poll() is not None:
                raise RuntimeError((clone / "server.log").read_text())
            time.sleep(0.1)

    try:
        yield start
    finally:
        stop()


def _follow(command: str, output: str, clone: Path, environment: dict[str, str]) -> None:
    done = subprocess.run(
        command.split(), cwd=clone, env=environment, capture_output=True, text=True, check=False, timeout=_INSTALL_S
    )
    if done.returncode or (output and done.stdout != output):
        raise RuntimeError(f"{command}: {done.returncode}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}")


def _installed(environment: Path) -> str:
    """Return a line on the size of an installation; RuntimeError: it has what it should not, or is too large."""
    (packages,) = environment.glob("lib/python3.*/site-packages")
    names = sorted(path.name for path in packages.iterdir())
    if found := [name for name in names if name in _ABSENT]:
        raise RuntimeError(f"the base install has {found}")
    files = [path for path in packages.rglob("*") if path.is_file() and path.suffix != ".pyc"]
    tools = ("pip", "setuptools", "pkg_resources", "_distutils_hack")
    size = sum(path.stat().st_size for path in files if not path.relative_to(packages).parts[0].startswith(tools))
    if size > _MAX_MB * 1e6:
        raise RuntimeError(f"the base install has {size / 1e6:.0f} MB, may have {_MAX_MB}")
    return f"{packages.parent.name}: the base install has {size / 1e6:.0f} MB, and the tutorial works"


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
        return port


def main() -> int:
    """Rehearse; return 0 if everything worked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dependencies-of", type=Path, help="an environment to take the dependencies from")
    parser.add_argument("--train", action="store_true", help="train for a moment, too")
    parser.add_argument("--manylinux", action="store_true", help="build with auditwheel, and a pure wheel, too")
    parser.add_argument("--dist", type=Path, help="copy sdist and wheel there")
    parser.add_argument("--base", action="store_true", help="follow the tutorial of docs/replay.md instead")
    parser.add_argument("--python", nargs="+", default=[sys.executable], help="with --base: the interpreters")
    options = parser.parse_args()
    if options.base:
        for python in options.python:
            with tempfile.TemporaryDirectory(prefix="tidemill-base-") as scratch:
                print(rehearse_base(python, Path(scratch)), flush=True)
        return 0
    with tempfile.TemporaryDirectory(prefix="tidemill-rehearsal-") as scratch:
        folder = Path(scratch)
        wheel = (build_for_every_linux if options.manylinux else build)(folder)
        binaries = install(wheel, folder / "venv", options.dependencies_of)
        hostile = folder / "hostile"
        make_hostile(hostile)
        environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
        for words in commands(train=options.train):
            command = [str(binaries / "tidemill"), *words]
            print("$ tidemill", " ".join(words), flush=True)
            done = subprocess.run(
                command, cwd=hostile, env=environment, capture_output=True, text=True, check=False, timeout=_TRAIN_S
            )
            if done.returncode not in ((0, 1) if words == ["doctor"] else (0,)) or "Traceback" in done.stderr:
                print(done.stdout[-3000:], done.stderr[-3000:], sep="\n")
                print(f"failed with {done.returncode}")
                return 1
        if options.dist is not None:
            options.dist.mkdir(exist_ok=True)
            for file in (*folder.glob("*.whl"), *folder.glob("*.tar.gz")):
                shutil.copy(file, options.dist)
    print(f"{wheel.name} builds, installs and runs from a folder of hostile names")
    return 0


if __name__ == "__main__":
    sys.exit(main())
