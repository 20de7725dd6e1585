"""The repository's own rules that no other tool holds."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from scripts import hash_locks

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("tidemill", "services", "tests", "benchmarks", "scripts")
GENERATED = re.compile(r"_pb2(_grpc)?\.py$")
PIN = re.compile(r"^([A-Za-z0-9._-]+)==([A-Za-z0-9.]+)(?: ; [^\\]+)?((?:[\s\\]+--hash=sha256:[0-9a-f]{64})*)$")
VAGUE_NAMES = {"utils", "util", "helpers", "helper", "common", "manager", "misc"}
LOCKS = sorted(path.name for path in (ROOT / "requirements").glob("*.txt"))


def sources(*folders: str) -> list[Path]:
    """Return the hand-written Python files below the folders, sorted."""
    found = (path for folder in folders for path in (ROOT / folder).rglob("*.py"))
    return sorted(path for path in found if not GENERATED.search(path.name))


def entries(name: str) -> list[str]:
    """Return the entries of a file of requirements/, each with its hashes."""
    text = (ROOT / "requirements" / name).read_text().replace(" \\\n", " ")
    return [line for line in text.splitlines() if line and not line.startswith(("#", "-c ", "--only-binary :all:"))]


def pins(name: str) -> dict[str, str]:
    """Return the versions a file of requirements/ pins, nested files included, by normalised name."""
    found: dict[str, str] = {}
    for line in entries(name):
        if line.startswith("-r "):
            found |= pins(line.removeprefix("-r "))
        else:
            match = PIN.match(line)
            assert match, f"requirements/{name}: {line!r} is not NAME==VERSION"
            found[normalised(match.group(1))] = match.group(2)
    return found


def normalised(name: str) -> str:
    """Return a distribution's name as package indexes compare it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def requirement_names(requirements: list[str]) -> set[str]:
    """Return the normalised names of requirement strings, Tidemill's own extras left out."""
    names = {normalised(re.split(r"[\[<>=!~; ]", requirement)[0]) for requirement in requirements}
    return names - {"tidemill"}


def imported_packages(path: Path) -> Iterator[Path]:
    """Yield the folder of each module of tests that a file imports; of a package, the folder that it is."""
    imported = r"^\s*(?:from (tests[\w.]*) import (\([^)]*\)|.+)|import (tests[\w.]*))"
    for module, names, alone in re.findall(imported, path.read_text(), re.MULTILINE):
        for name in re.findall(r"\w+", names) or [""]:
            folder = ROOT.joinpath(*(module or alone).split("."), name)
            while not folder.is_dir():
                folder = folder.parent
            yield folder


@pytest.mark.parametrize("package", PACKAGES)
def test_folder_with_python_files_is_a_package(package: str) -> None:
    """Every folder with Python files has an __init__.py: import-linter silently skips one without."""
    folders = {path.parent for path in (ROOT / package).rglob("*.py")}
    inner = {parent for folder in folders for parent in folder.parents if parent.is_relative_to(ROOT / package)}
    without = sorted(str(path.relative_to(ROOT)) for path in folders | inner if not (path / "__init__.py").exists())
    assert without == []


def test_proto_has_its_stubs_in_the_folder_of_its_package() -> None:
    """A proto at protos/a/b/v1/c.proto declares package a.b.v1 and its stubs lie in a/b/v1."""
    protos = sorted((ROOT / "protos").rglob("*.proto"))
    assert protos
    for proto in protos:
        folder = proto.parent.relative_to(ROOT / "protos")
        assert f"package {'.'.join(folder.parts)};" in proto.read_text()
        for suffix in ("_pb2.py", "_pb2.pyi", "_pb2_grpc.py", "_pb2_grpc.pyi"):
            assert (ROOT / folder / f"{proto.stem}{suffix}").exists(), f"{proto.stem}{suffix} is missing in {folder}"


def test_source_file_has_a_telling_name() -> None:
    """No file is named utils, helpers, common or manager: the name of a file is a word of the glossary."""
    vague = [str(path.relative_to(ROOT)) for path in sources("tidemill", "services") if path.stem in VAGUE_NAMES]
    assert vague == []


def test_what_test_packages_share_lies_in_one_place() -> None:
    """A test imports from its own package, from one that encloses it, or from tests/support; nothing else is shared."""
    for path in sources("tests"):
        for package in imported_packages(path):
            is_shared = package.relative_to(ROOT).parts[:2] in (("tests", "support"), ("tests", "oracles"))
            assert is_shared or path.is_relative_to(package), f"{path.relative_to(ROOT)}: {package.relative_to(ROOT)}"


def test_services_are_imported_from_inside_the_package() -> None:
    """The distribution owns no top-level name but tidemill: nothing imports `services`, and the link leads there."""
    own = re.compile(r"^\s*(from|import) services\b", re.MULTILINE)
    assert [str(path) for path in sources(*PACKAGES) if own.search(path.read_text())] == []
    assert (ROOT / "tidemill" / "services").resolve() == ROOT / "services"


def test_product_never_unpickles() -> None:
    """Nothing on the wire or on disk is pickle: no file of the product imports it."""
    for path in sources("tidemill", "services"):
        text = path.read_text()
        assert not re.search(r"^\s*(import|from) (pickle|cloudpickle|dill|marshal|shelve)\b", text, re.MULTILINE), path
        assert "weights_only=False" not in text, path


@pytest.mark.parametrize("name", LOCKS)
def test_lock_pins_every_line_exactly(name: str) -> None:
    """Each line of every file in requirements/ is NAME==VERSION, with or without hashes."""
    assert pins(name)


@pytest.mark.parametrize("name", hash_locks.LOCKS)
def test_lock_that_make_installs_has_hashes_and_wheels_alone(name: str) -> None:
    """No other file is ever installed, and nothing is compiled; `make lock` writes the hashes."""
    pinned = [line for line in entries(name) if not line.startswith("-r ")]
    assert [line for line in pinned if "--hash=" not in line] == []
    assert "\n--only-binary :all:\n" in (ROOT / "requirements" / name).read_text()
    assert f"--require-hashes -r requirements/{name}\n" in (ROOT / "Makefile").read_text()


def test_locks_are_installed_without_resolving() -> None:
    """A lock lists everything it needs; resolving an extra, pip demands a pin of that extra's newest release."""
    recipes = (ROOT / "Makefile").read_text().splitlines()
    assert [line for line in recipes if "--require-hashes" in line and "--no-deps" not in line] == []


def test_only_torch_is_installed_without_a_hash() -> None:
    """Its build is the machine's choice; what it needs besides CUDA is pinned by hash and installed before."""
    assert pins("torch.txt").keys() == {"torch"}
    installed = re.findall(r"\$\(PIP_INSTALL\) (.*)-r requirements/(\S+)", (ROOT / "Makefile").read_text())
    assert "runtime.txt" in {name for _, name in installed}
    assert [name for options, name in installed if "--require-hashes" not in options] == []


def test_lock_pins_every_direct_dependency() -> None:
    """Every dependency of pyproject.toml is pinned: a run's in runtime.txt or torch.txt, the tools' in dev.txt."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    run = project["dependencies"] + extras["learn"] + extras["box2d"] + extras["security"]
    assert requirement_names(run) - pins("runtime.txt").keys() - pins("torch.txt").keys() == set()
    assert requirement_names(extras["atari"]) - pins("atari.txt").keys() == set()
    assert requirement_names(extras["mujoco"]) - pins("runtime.txt").keys() - pins("mujoco.txt").keys() == set()
    assert requirement_names(extras["dev"]) - pins("dev.txt").keys() == set()


def test_runtime_lock_holds_no_gpl_package() -> None:
    """The Atari emulator is GPL-2.0: a quickstart must not install it unasked."""
    assert "ale-py" not in pins("runtime.txt")
