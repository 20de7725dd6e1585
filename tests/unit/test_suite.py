"""The script behind `make test`: which failures get a second try."""

from __future__ import annotations

from pathlib import Path

import pytest

import tests.conftest
from scripts.suite import may_be_tried_again, run
from tests.support.waiting import crowd

_FAILS_ONCE = """
from pathlib import Path

def test_it():
    seen = Path(__file__).with_suffix(".seen")
    was_seen = seen.exists()
    seen.touch()
    assert was_seen
"""

_CHAPTERS = """
from pathlib import Path

begun = []

def test_first():
    begun.append(True)

def test_second():
    seen = Path(__file__).with_suffix(".seen")
    was_seen = seen.exists()
    seen.touch()
    assert begun and was_seen
"""


@pytest.mark.parametrize(
    "failed, expected",
    [
        (["tests/process/test_a.py::test_b"], True),
        (
            ["tests/compose/test_a.py::test_b", "tests/learning/test_a.py::test_b", "tests/chaos/test_a.py::test_b"],
            True,
        ),
        ([], False),
        (["tests/process/test_a.py::test_b", "tests/unit/test_a.py::test_b"], True),
        ([f"tests/process/test_a.py::test_{number}" for number in range(4)], False),
    ],
)
def test_only_few_failures_are_tried_again(failed: list[str], expected: bool) -> None:
    """A suite in which much fails has failed."""
    assert may_be_tried_again(failed) is expected


@pytest.fixture(autouse=True)
def _few_plugins(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the suites that are run here start without what they do not use: each starts pytest up to five times."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    monkeypatch.setenv("PYTEST_PLUGINS", "xdist.plugin")


@pytest.mark.parametrize(
    "room, content, code",
    [
        ("process", _FAILS_ONCE, 0),
        ("unit", _FAILS_ONCE, 0),
        ("process", "def test_it():\n    assert False\n", 1),
        ("unit", "def test_it():\n    assert False\n", 1),
        ("process", "import nothing_of_this_name\n", 1),
    ],
    ids=["once", "unit once", "always", "unit always", "broken"],
)
def test_second_try_decides(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], room: str, content: str, code: int
) -> None:
    """What fails twice has failed; what passes alone is named."""
    folder = tmp_path / "tests" / room
    folder.mkdir(parents=True)
    (folder / "test_a.py").write_text(content)
    (tmp_path / "pytest.ini").touch()
    assert (run(tmp_path, "--numprocesses", "1") == 0) is (code == 0)
    assert ("passed alone, failed beside other tests" in capfd.readouterr().out) is (code == 0)


def test_chapter_is_tried_again_with_those_before_it(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """The chapters of a cluster's life need what the ones before them have left; the one that failed is named."""
    file = tmp_path / "tests" / "compose" / "test_stack.py"
    file.parent.mkdir(parents=True)
    file.write_text(_CHAPTERS)
    (tmp_path / "pytest.ini").touch()
    assert run(tmp_path, "--numprocesses", "1") == 0
    named = "tests/compose/test_stack.py::test_second\n"
    assert capfd.readouterr().out.endswith(f"passed alone, failed beside other tests: {named}")


def test_byte_code_is_written_whatever_the_shell_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without it each of the many processes would compile all that it imports."""
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    folder = tmp_path / "tests" / "unit"
    folder.mkdir(parents=True)
    (folder / "test_a.py").write_text("import sys\n\ndef test_it():\n    assert not sys.dont_write_bytecode\n")
    (tmp_path / "pytest.ini").touch()
    assert run(tmp_path, "--numprocesses", "1") == 0


_HANGS = """
import ctypes
import time
import pytest

def test_cleanup_hangs():
    try:
        time.sleep(60)
    finally:
        time.sleep(60)

def test_error_is_swallowed():
    class Silent:
        def __del__(self):
            time.sleep(60)

    silent = Silent()
    del silent
    time.sleep(60)

@pytest.fixture
def hangs_at_its_end(tmp_path):
    yield
    time.sleep(60)

def test_teardown_hangs(hangs_at_its_end):
    pass

def test_has_another_folder(tmp_path):
    assert "teardown" not in tmp_path.name

@pytest.fixture(scope="module")
def hangs():
    time.sleep(60)

@pytest.mark.parametrize("number", [1, 2])
def test_needs_what_hangs(hangs, number):
    pass

def test_call_never_returns():
    library, mutex = ctypes.CDLL(None), ctypes.create_string_buffer(64)
    library.pthread_mutex_lock(mutex)
    library.pthread_mutex_lock(mutex)

def test_passes():
    pass
"""


def test_hang_ends_its_test_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Also in a cleanup, in a destructor, which swallows the error, and in C, where none can be raised.

    The last one ends its worker, and the log says where it was; another worker takes the tests that are left.
    """
    monkeypatch.setenv("PYTEST_PLUGINS", "xdist.plugin,pytest_timeout")
    folder = tmp_path / "tests" / "unit"
    folder.mkdir(parents=True)
    (tmp_path / "tests" / "conftest.py").write_text(Path(tests.conftest.__file__).read_text())
    for name in "abc":
        (folder / f"test_{name}.py").write_text("def test_passes():\n    pass\n")
    (folder / "test_bb.py").write_text(_HANGS)
    (tmp_path / "pytest.ini").write_text(f"[pytest]\ntimeout = {round(2 * crowd())}\n")
    assert run(tmp_path, "--numprocesses", "1") == 1
    output, errors = capfd.readouterr()
    assert "3 failed, 6 passed" in output
    assert "3 errors" in output
    assert "crashed while running 'tests/unit/test_bb.py::test_call_never_returns'" in output
    assert "in test_call_never_returns" in errors
