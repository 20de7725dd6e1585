"""Check that every relative link in the Markdown files leads somewhere, headings included."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote

ROOT = Path(__file__).resolve().parent.parent
_FOLDERS = ("docs", "examples", "configs", "benchmarks", "deploy", "services", "tidemill", "tests")
_FENCE = re.compile(r"^(```|~~~).*?^\1", re.MULTILINE | re.DOTALL)
_CODE = re.compile(r"`[^`\n]*`")
_LINK = re.compile(r"!?\[[^\]]*\]\(<?([^)\s>]+)>?(?:\s+\"[^\"]*\")?\)|(?:src|href)=\"([^\"]+)\"")
_HEADING = re.compile(r"^#{1,6}\s+(.+?)\s*#*$", re.MULTILINE)
_EXTERNAL = re.compile(r"^([a-z][a-z0-9+.-]*:|//)", re.IGNORECASE)


def documents(root: Path = ROOT) -> list[Path]:
    """Return the Markdown files of the project, sorted."""
    nested = (path for folder in _FOLDERS for path in (root / folder).rglob("*.md"))
    return sorted([*root.glob("*.md"), *nested])


def anchors(text: str) -> set[str]:
    """Return the anchors of a Markdown text's headings, named as GitHub names them."""
    names: set[str] = set()
    for heading in _HEADING.findall(_FENCE.sub("", text)):
        plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).strip().lower()
        slug = re.sub(r"[^\w\- ]", "", plain).replace(" ", "-")
        repeats = sum(1 for name in names if re.fullmatch(re.escape(slug) + r"(-\d+)?", name))
        names.add(f"{slug}-{repeats}" if repeats else slug)
    return names


def links(text: str) -> Iterator[str]:
    """Yield the relative targets of a Markdown text, code left out."""
    for match in _LINK.finditer(_CODE.sub("", _FENCE.sub("", text))):
        target = match.group(1) or match.group(2)
        if not _EXTERNAL.match(target):
            yield unquote(target)


def leads_somewhere(document: Path, target: str) -> bool:
    """True if the relative target of a link exists, including its heading."""
    path, _, anchor = target.partition("#")
    file = document.parent / path if path else document
    if not file.exists():
        return False
    return not anchor or file.suffix != ".md" or anchor in anchors(file.read_text(encoding="utf-8"))


def broken(document: Path) -> list[str]:
    """Return the targets of one document that lead nowhere."""
    text = document.read_text(encoding="utf-8")
    return [target for target in links(text) if not leads_somewhere(document, target)]


def main() -> int:
    """Print every broken link; return 1 if there is one."""
    found = [(document, target) for document in documents() for target in broken(document)]
    for document, target in found:
        print(f"{document.relative_to(ROOT)}: {target} leads nowhere")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
