"""What `make docs` lays out for mkdocs, and what the site may not do."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from scripts.docs import site
from tests.support.naming import naming

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A small repository whose README.md links to a page, a heading, a source file and two folders."""
    files = {
        "README.md": "[page](docs/page.md#part) [code](lib/one.py) [lib](lib) [examples](examples/) [x](https://a.b/c)",
        "docs/page.md": "# Page\n\n## Part\n\n[up](../README.md) ![picture](images/a.svg) [again](../lib/one.py)",
        "docs/images/a.svg": "<svg/>",
        "lib/one.py": "one = 1\n",
        "examples/README.md": "# Examples\n",
        "unlinked.md": "# Nothing leads here\n",
    }
    for name, text in files.items():
        (tmp_path / "root" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "root" / name).write_text(text)
    return tmp_path / "root"


def test_pages_are_laid_out_as_in_the_repository(repository: Path, tmp_path: Path) -> None:
    """A source file becomes a page that shows it, a folder its README.md or a list; what nothing leads to stays out."""
    source = tmp_path / "source"
    site.stage(repository, source)
    laid_out = {path.relative_to(source).as_posix() for path in source.rglob("*") if path.is_file()}
    assert laid_out == {
        "README.md",
        "docs/page.md",
        "docs/images/a.svg",
        "lib/one.py.md",
        "lib/index.md",
        "examples/README.md",
    }
    assert (source / "README.md").read_text() == (
        "[page](docs/page.md#part) [code](lib/one.py.md) [lib](lib/index.md) [examples](examples/README.md) "
        "[x](https://a.b/c)"
    )
    assert "[again](../lib/one.py.md)" in (source / "docs" / "page.md").read_text()
    assert (source / "lib" / "one.py.md").read_text() == "# lib/one.py\n\n~~~~python\none = 1\n~~~~\n"


def test_link_that_leads_nowhere_is_refused(repository: Path, tmp_path: Path) -> None:
    """Also one that leaves the repository."""
    for target in ("gone.md", "../outside.md"):
        (tmp_path / "outside.md").touch()
        (repository / "README.md").write_text(f"[x]({target})")
        with pytest.raises(SystemExit, match=naming("README.md", target)):
            site.stage(repository, tmp_path / "source")


def test_what_a_page_would_fetch_elsewhere_is_found(tmp_path: Path) -> None:
    """Scripts, styles, pictures and fonts of other machines; a link that a reader may click is none."""
    (tmp_path / "a.html").write_text(
        '<a href="https://a.b/link"></a><script src="https://cdn.a/x.js"></script><script src="own.js"></script>'
        '<link rel="stylesheet" href="//cdn.b/y.css"><link rel="canonical" href="https://a.b/a.html"><img src="p.png">'
    )
    (tmp_path / "a.css").write_text("@import url(https://fonts.c/f.css); a{background:url('own.png')}")
    assert list(site.fetched_elsewhere(tmp_path)) == [
        "a.html: https://cdn.a/x.js",
        "a.html: //cdn.b/y.css",
        "a.css: https://fonts.c/f.css",
    ]


def test_navigation_has_every_page() -> None:
    """Each page of docs/ but the decisions' is in mkdocs.yml, and every entry is there."""
    listed = set(re.findall(r": (\S+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE))
    pages = {path.relative_to(ROOT).as_posix() for path in (ROOT / "docs").rglob("*.md")}
    assert {page for page in pages - listed if not page.startswith("docs/adr/0")} == set()
    assert {page for page in listed if not (ROOT / page).exists()} == set()
