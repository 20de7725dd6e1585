"""Build the documentation as a site: `make docs`.

    .venv-docs/bin/python -m scripts.docs.site

The pages are those that a reader of the repository has: README.md, docs/, and what they link to. They are laid out in
build/docs/source as in the repository, so that every relative link means the same in both; a source file becomes a page
that shows it. mkdocs then builds build/docs/site, and whatever leads nowhere is an error. Nothing in the site asks
another machine for anything, and except for the search it also works when opened from the disk.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path

from scripts.check_links import links

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "build" / "docs" / "source"
SITE = ROOT / "build" / "docs" / "site"

_LANGUAGES = {
    ".py": "python", ".yaml": "yaml", ".yml": "yaml", ".proto": "protobuf", ".toml": "toml", ".json": "json", ".c": "c"
}  # fmt: skip
_FETCHES = {"script": "src", "img": "src", "iframe": "src", "source": "src", "video": "src", "audio": "src"}
"""Tags that make a browser fetch what an attribute names."""
_LINKS_THAT_FETCH = {"stylesheet", "icon", "preload", "modulepreload", "preconnect", "dns-prefetch", "manifest"}
_CSS_FETCH = re.compile(r"(?:@import\s+|url\()\s*['\"]?((?:https?:)?//[^'\")\s]+)")


def stage(root: Path = ROOT, source: Path = SOURCE) -> None:
    """Lay out README.md, docs/ and all that they lead to below `source`, in the repository's places.

    Raises:
        SystemExit: A link leads nowhere, or out of the repository.
    """
    shutil.rmtree(source, ignore_errors=True)
    pending = [root / "README.md", *sorted((root / "docs").rglob("*.md"))]
    seen = set(pending)
    while pending:
        path = pending.pop()
        out = source / staged(path).relative_to(root)
        out.parent.mkdir(parents=True, exist_ok=True)
        if path.suffix == ".md" or path.is_dir():
            text, targets = listing(path, root) if path.is_dir() else rewritten(path, root)
            out.write_text(text, encoding="utf-8")
            pending += sorted(targets - seen)
            seen |= targets
        elif path.suffix in _LANGUAGES:
            code = path.read_text(encoding="utf-8")
            out.write_text(
                f"# {path.relative_to(root)}\n\n~~~~{_LANGUAGES[path.suffix]}\n{code}~~~~\n", encoding="utf-8"
            )
        else:
            shutil.copyfile(path, out)
    if (style := root / "docs" / "site.css").exists():
        shutil.copyfile(style, source / "docs" / "site.css")


def staged(path: Path) -> Path:
    """Path in the site's source for a file or folder: source files and folders become pages."""
    if path.is_dir():
        return path / "index.md"
    return path.with_name(f"{path.name}.md") if path.suffix in _LANGUAGES else path


def listing(folder: Path, root: Path) -> tuple[str, set[Path]]:
    """Return the page of a folder without a README.md, and the source files that it lists."""
    files = sorted(path for path in folder.iterdir() if path.suffix in _LANGUAGES)
    lines = [f"- [{path.name}]({staged(path).name})" for path in files]
    return "\n".join([f"# {folder.relative_to(root)}", "", *lines, ""]), set(files)


def rewritten(document: Path, root: Path = ROOT) -> tuple[str, set[Path]]:
    """Return a document whose links lead to what the site has in place of a folder or source file, and their targets.

    Raises:
        SystemExit: A link leads nowhere, or out of the repository.
    """
    text, targets = document.read_text(encoding="utf-8"), set()
    for target in set(links(text)):
        name, mark, anchor = target.partition("#")
        if not name:
            continue
        path = (document.parent / name).resolve()
        path = path / "README.md" if (path / "README.md").exists() else path
        if not path.exists() or not path.is_relative_to(root):
            raise SystemExit(f"{document.relative_to(root)}: {target} leads nowhere, or out of the repository")
        targets.add(path)
        new = os.path.relpath(staged(path), document.parent)
        text = text.replace(f"({target})", f"({new}{mark}{anchor})")
    return text, targets


class _Fetches(HTMLParser):
    """Collects what a page makes a browser fetch."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note a tag that fetches."""
        values = {name: value or "" for name, value in attrs}
        if tag in _FETCHES:
            self.found.append(values.get(_FETCHES[tag], ""))
        elif tag == "link" and _LINKS_THAT_FETCH & set(values.get("rel", "").split()):
            self.found.append(values.get("href", ""))


def fetched_elsewhere(site: Path) -> Iterator[str]:
    """Yield `FILE: ADDRESS` for all that the site's pages and styles fetch from another machine."""
    for path in sorted(site.rglob("*.html")):
        parser = _Fetches()
        parser.feed(path.read_text(encoding="utf-8"))
        for address in parser.found:
            if re.match(r"(?:https?:)?//", address):
                yield f"{path.relative_to(site)}: {address}"
    for path in sorted(site.rglob("*.css")):
        for address in _CSS_FETCH.findall(path.read_text(encoding="utf-8")):
            yield f"{path.relative_to(site)}: {address}"


def main() -> int:
    """Build the site; return the exit code."""
    stage()
    mkdocs = Path(sys.executable).parent / "mkdocs"
    done = subprocess.run(
        [str(mkdocs), "build", "--strict", "--quiet"],
        cwd=ROOT,
        env=os.environ | {"NO_MKDOCS_2_WARNING": "1"},
        check=False,
    )
    if done.returncode:
        return done.returncode
    if elsewhere := list(fetched_elsewhere(SITE)):
        print("\n".join(["the site asks other machines for:", *elsewhere]), file=sys.stderr)
        return 1
    print(f"{SITE.relative_to(ROOT)}/index.html")
    return 0


if __name__ == "__main__":
    sys.exit(main())
