"""Write deploy/requirements/*.txt: the pins of requirements/ with the hashes of the files an image installs.

The images are linux/amd64 with CPython 3.11, so one file a package is enough, whatever machine this runs on. pip
itself says which file it would take; nothing is installed. The CUDA libraries are fetched for that, about 3 GB.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
OUT = ROOT / "deploy" / "requirements"
CPU_INDEX = "https://download.pytorch.org/whl/cpu"

_GLIBC_MINORS = range(28, 4, -1)
_PLATFORMS = [f"manylinux_2_{minor}_x86_64" for minor in _GLIBC_MINORS] + ["manylinux2014_x86_64", "manylinux1_x86_64"]


def pins(name: str) -> dict[str, str]:
    """Return the pins `NAME==VERSION` of a file of requirements/ by normalised name, nested files left out."""
    lines = (ROOT / "requirements" / name).read_text(encoding="utf-8").splitlines()
    return {normalised(line.partition("==")[0]): line.partition(" ")[0] for line in lines if "==" in line}


def normalised(name: str) -> str:
    """Return a distribution's name as package indexes compare it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def hashed(requirements: list[str], *options: str, python: str = "3.11") -> dict[str, str]:
    """Return the lines `NAME==VERSION --hash=...` of what pip would install on linux/amd64, by normalised name."""
    target = ["--only-binary", ":all:", "--python-version", python, "--implementation", "cp"]
    target += [word for abi in (f"cp{python.replace('.', '')}", "abi3", "none") for word in ("--abi", abi)]
    target += [word for platform in _PLATFORMS for word in ("--platform", platform)]
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--dry-run", "--ignore-installed"]
        command += ["--report", str(report), "--target", folder, *target, *options, *requirements]
        subprocess.run(command, check=True)
        found = json.loads(report.read_text(encoding="utf-8"))["install"]
    lines = {}
    for item in found:
        name, version = normalised(item["metadata"]["name"]), item["metadata"]["version"]
        digest = item["download_info"]["archive_info"]["hashes"]["sha256"]
        lines[name] = f"{name}=={version} --hash=sha256:{digest}"
    return lines


def write(name: str, about: str, lines: dict[str, str]) -> None:
    """Write one lock."""
    text = "\n".join([f"# {about} Written by `python -m scripts.image_locks`.", *sorted(lines.values()), ""])
    (OUT / f"{name}.txt").write_text(text, encoding="utf-8")
    print(f"{name}: {len(lines)} packages")


def main() -> int:
    """Write every lock; return 0."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    run, cuda, torch = pins("runtime.txt"), pins("cuda.txt"), pins("torch.txt")["torch"]
    exactly = torch.replace("==", "===")  # not a build with a local version, such as +cpu
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as constraints:  # without hashes, which would ask for all
        constraints.write("\n".join(run.values()))
        constraints.flush()
        base = hashed(project["dependencies"], "-c", constraints.name)
        added = hashed(
            [*project["dependencies"], *project["optional-dependencies"]["security"]], "-c", constraints.name
        )
    security = {name: line for name, line in added.items() if name not in base}
    learn = hashed([line for name, line in run.items() if name not in base.keys() | security.keys()], "--no-deps")
    write("base", "What every image holds.", base)
    write("security", "What `tidemill certs` needs on top.", security)
    write("learn", "What learner, actor and evaluator hold on top, torch aside.", learn)
    atari = hashed([*pins("atari.txt").values()], "--no-deps")
    write("atari", "The Atari emulator and its games, GPL-2.0: installed when asked for.", atari)
    write("build", "What builds the wheel of Tidemill itself.", hashed([run["setuptools"]], "--no-deps"))
    write("torch-cpu", "torch without CUDA.", hashed([f"{torch}+cpu", "--extra-index-url", CPU_INDEX], "--no-deps"))
    write("torch-cuda", "torch with CUDA.", hashed([exactly, *cuda.values()], "--no-deps"))
    return 0


if __name__ == "__main__":
    sys.exit(main())
