"""The script that changes a file and sees whether its tests notice."""

from __future__ import annotations

from pathlib import Path

import pytest

from scripts import mutants
from scripts.mutants import Bench, Verdict, mutations, survey


def _mutants(source: str) -> set[str]:
    return {mutation.applied(source.encode()).decode() for mutation in mutations(source.encode())}


@pytest.mark.parametrize(
    "source, expected",
    [
        ("a = b < c", {"a = b <= c"}),
        ("a = (b) is not (c)", {"a = (b) is (c)"}),
        ("a = b < c <= d", {"a = b <= c <= d", "a = b < c < d"}),
        ("a = b and c", {"a = b or c"}),
        ("a = not b", {"a = b"}),
        ("a = -b", {"a = b"}),
        ("a = 'ä' * b", {"a = 'ä' / b"}),
        ("a = 3", {"a = 4"}),
        ("a = True", {"a = False"}),
        ("a = max(b)", {"a = min(b)"}),
        ("a = b.minimum.at(c)", set()),
        ("a = np.minimum(b, c)", {"a = np.maximum(b, c)"}),
        ("if a: b = c", {"if not a: b = c"}),
        ("a.b()", {"pass"}),
        ("raise a", {"pass"}),
        ("a -= b", {"a += b"}),
    ],
)
def test_mutants_of_a_line(source: str, expected: set[str]) -> None:
    """Each place is changed in one way that a test should see, the rest of the line kept."""
    assert _mutants(source) == expected


@pytest.mark.parametrize(
    "source",
    [
        '"""1 < 2"""',
        "a: b | c = d",
        "def f(a: b | None) -> b | None: ...",
        "assert a < b",
        "_log.info('a', n=3)",
        "a = f'{b:3} < {c}'",
    ],
)
def test_what_says_something_to_people_is_left_alone(source: str) -> None:
    """Texts, annotations, assertions and logging do not count as behaviour of the file."""
    assert _mutants(source) == set()


@pytest.fixture(autouse=True)
def _no_plugins(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the tests that are run here start without plugins, of which they use none."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")


def _tree(root: Path, source: str, test: str) -> None:
    (root / "tests").mkdir(parents=True)
    (root / "pyproject.toml").write_text("[tool.pytest.ini_options]\n")
    (root / "compared.py").write_text(source)
    (root / "tests" / "test_compared.py").write_text(test)


def test_survey_tells_killed_from_surviving_mutants(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of three mutants the tests fail two; the third is printed with its line, and the tree is left as it was."""
    monkeypatch.setattr(mutants, "_PRELOADED", ["pytest"])
    source = "def f(a, b):\n    return not b > 2 and a < b\n"
    _tree(tmp_path / "root", source, "from compared import f\n\ndef test_f():\n    assert f(1, 2) and not f(2, 2)\n")
    assert survey(tmp_path / "root", Path("compared.py"), ["tests"], most=9, seed=1) == (4, 5)
    lines = capfd.readouterr().out.splitlines()
    assert [line for line in lines if line.startswith("survived")] == [
        "survived compared.py:2: '2' -> '3' in return not b > 2 and a < b"
    ]
    assert lines[-1] == "compared.py: 4 of 5 killed, 5 possible"
    assert (tmp_path / "root" / "compared.py").read_text() == source


def test_mutant_that_never_ends_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It counts as killed, but is named for what it is, since a slow machine does the same to any mutant."""
    monkeypatch.setattr(mutants, "_PRELOADED", ["pytest"])
    _tree(tmp_path / "root", "a = 1\n", "import compared\n\ndef test_import():\n    pass\n")
    bench = Bench(tmp_path / "root", tmp_path / "copy", Path("compared.py"), ["tests"])
    assert bench.judge(b"while True: pass\n", timeout_s=2.0) is Verdict.TIMED_OUT


def test_survey_refuses_tests_that_do_not_test_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A score of nothing killed would only say that the wrong tests were named."""
    monkeypatch.setattr(mutants, "_PRELOADED", ["pytest"])
    _tree(tmp_path / "root", "a = 1\n", "def test_other():\n    pass\n")
    with pytest.raises(SystemExit, match="not tests of it"):
        survey(tmp_path / "root", Path("compared.py"), ["tests"], most=1, seed=1)
