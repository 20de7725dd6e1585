"""Build the distribution, install its wheel into a clean environment, and use it from a folder of hostile names.

    python -m scripts.release_rehearsal [--dependencies-of .venv] [--train]

The folder has files and packages called `services`, `tests`, `configs`, `types.py` and `queue.py`, as a user's own may:
none of them may stand in for ours or the standard library's, and the user's environment module there is found.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
_TRAIN_S = 300
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
    """Build sdist and wheel into `folder` from a copy of the tracked files; return the wheel."""
    source = folder / "source"
    subprocess.run(["git", "clone", "--quiet", "--no-hardlinks", str(ROOT), str(source)], check=True)
    for hook in ("build_sdist", "build_wheel"):
        code = f"import setuptools.build_meta as b; print(b.{hook}({str(folder)!r}))"
        subprocess.run([sys.executable, "-c", code], cwd=source, check=True, stdout=subprocess.DEVNULL)
    (wheel,) = folder.glob("*.whl")
    return wheel


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
    """Return what is run in the hostile folder, after the name of the program."""
    short = [
        *("train", "--env.id", "own_env:make", "--env.max-evaluation-steps", "200", "--agent.algorithm", "dqn"),
        *("--agent.network", "mlp", "--run.name", "rehearsal", "--run.max-learner-steps", "200"),
        *("--table.min-size", "200", "--evaluator.episodes", "2"),
    ]
    passed_on = [["export", "runs/rehearsal", "--out", "policy"], ["evaluate", "policy", "--trust", "--episodes", "2"]]
    plan = ["plan", "--cores", "4", "--env", "ALE/Pong-v5"]
    plain = [["--version"], ["--help"], ["train", "--config", "quickstart", "--help"], ["doctor"], plan]
    return [*plain, short, *passed_on] if train else plain


def main() -> int:
    """Rehearse; return 0 if everything worked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dependencies-of", type=Path, help="an environment to take the dependencies from")
    parser.add_argument("--train", action="store_true", help="train for a moment, too")
    parser.add_argument("--dist", type=Path, help="copy sdist and wheel there")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="tidemill-rehearsal-") as scratch:
        folder = Path(scratch)
        wheel = build(folder)
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
