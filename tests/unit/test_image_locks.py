"""The hash-pinned requirements of the container images agree with the pins the tests run on."""

from __future__ import annotations

import re

import pytest

from scripts.image_locks import OUT, ROOT, normalised, pins

_LINE = re.compile(r"^([a-z0-9-]+)==(\S+) --hash=sha256:[0-9a-f]{64}$")
_LOCKS = sorted(path.stem for path in OUT.glob("*.txt"))


def lock(name: str) -> dict[str, str]:
    """Return the versions of a lock by package; every line has a hash."""
    lines = [line for line in (OUT / f"{name}.txt").read_text().splitlines() if not line.startswith("#")]
    matches = [_LINE.match(line) for line in lines]
    assert all(matches), lines
    return {match.group(1): match.group(2) for match in matches if match}


def pinned(*names: str) -> dict[str, str]:
    """Return the versions that files of requirements/ pin, by package."""
    return {package: line.partition("==")[2] for name in names for package, line in pins(name).items()}


@pytest.mark.parametrize("name", _LOCKS)
def test_lock_of_an_image_has_the_versions_to_test(name: str) -> None:
    """An image never holds a version that requirements/ does not name; run scripts.image_locks after a change."""
    tested = pinned("runtime.txt", "torch.txt", "cuda.txt", "atari.txt")
    for package, version in lock(name).items():
        assert version.removesuffix("+cpu") == tested[package], package


def test_locks_together_hold_everything_a_run_needs() -> None:
    """Those without CUDA are runtime.txt and torch.txt of requirements/; the CUDA lock is cuda.txt besides."""
    held = {package for name in ("base", "security", "learn", "torch-cpu") for package in lock(name)}
    assert held == pinned("runtime.txt", "torch.txt").keys()
    assert lock("torch-cuda").keys() == pinned("cuda.txt").keys() | {"torch"}
    assert lock("atari").keys() == pinned("atari.txt").keys()


@pytest.mark.parametrize("name", ["base", "security", "learn", "atari", "build"])
def test_files_of_an_image_are_among_those_that_are_tested(name: str) -> None:
    """Where both pin a package by hash, an image holds a file that `make` installs too."""
    tested = "".join((ROOT / "requirements" / lock).read_text() for lock in ("runtime.txt", "atari.txt"))
    hashes = re.findall(r"sha256:[0-9a-f]{64}", (OUT / f"{name}.txt").read_text())
    assert hashes
    assert [digest for digest in hashes if digest not in tested] == []


def test_images_without_torch_hold_nothing_of_it() -> None:
    """Replay and the parameter server install the base lock alone; what makes certificates is in no server's image."""
    heavy = {"torch", "gymnasium", "matplotlib", "tensorboard", "triton", "cryptography"}
    assert not heavy & {normalised(package) for package in lock("base")}
    assert "cryptography" not in lock("learn")
