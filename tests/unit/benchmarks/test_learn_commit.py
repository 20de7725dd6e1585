"""A result names the commit of its runs, and reports are of committed files."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from benchmarks.learn.carry_out import check_committed, commit
from benchmarks.learn.plan import RESULTS
from tests.support.naming import naming
from tidemill.errors import ConfigError


@pytest.fixture(name="checkout")
def fixture_checkout(tmp_path: Path) -> Path:
    """Return a repository with a file and a result, both committed."""
    (tmp_path / RESULTS).mkdir(parents=True)
    for file in ("agent.py", RESULTS / "README.md"):
        (tmp_path / file).write_text("1")
    identity = ("-c", "user.name=t", "-c", "user.email=t@localhost")
    for words in (("init", "-q"), ("add", "."), (*identity, "commit", "-q", "--no-verify", "-m", "first")):
        subprocess.run(["git", *words], cwd=tmp_path, check=True, timeout=60.0)
    return tmp_path


def test_commit_is_dirty_by_changed_files_other_than_results(checkout: Path) -> None:
    """A report of several results writes the table after each, which changes nothing that is run."""
    number = commit(checkout)
    assert len(number) == 12
    (checkout / RESULTS / "README.md").write_text("2")
    (checkout / "new").write_text("of nobody")
    assert commit(checkout) == number
    check_committed(checkout)
    (checkout / "agent.py").write_text("2")
    assert commit(checkout) == f"{number}-dirty"


def test_report_of_changed_files_is_refused(checkout: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Nobody could make it again; the same without git."""
    (checkout / "agent.py").write_text("2")
    with pytest.raises(ConfigError, match="-dirty"):
        check_committed(checkout)
    with pytest.raises(ConfigError, match=naming("git commit")):
        check_committed(tmp_path_factory.mktemp("exported"))
