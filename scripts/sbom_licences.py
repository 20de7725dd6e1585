"""Add to a CycloneDX bill of materials the licence of each component, as the installed package states it.

python -m scripts.sbom_licences build/sbom.cdx.json
"""

from __future__ import annotations

import json
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

_SPDX = {
    "3-Clause BSD License": "BSD-3-Clause",
    "Apache 2.0": "Apache-2.0",
    "Apache Software License": "Apache-2.0",
    "Apache-2.0": "Apache-2.0",
    "BSD-2-Clause": "BSD-2-Clause",
    "BSD-3-Clause": "BSD-3-Clause",
    "MIT": "MIT",
    "MIT License": "MIT",
    "zlib": "Zlib",
}
"""What packages write that has one meaning. Other words stay as they are: `BSD` says not which."""
_LONGEST_NAME = 60  # characters; what is longer is the text of a licence


def main() -> int:
    """Rewrite the file; return 1 if a component is not installed at its version, or states no licence."""
    file = Path(sys.argv[1])
    document = json.loads(file.read_text(encoding="utf-8"))
    wrong = add_licences(document["components"])
    if wrong:
        print("\n".join(wrong), file=sys.stderr)
        return 1
    file.write_text(json.dumps(document, indent=2, sort_keys=True) + "\n", encoding="utf-8")
    return 0


def add_licences(components: list[dict[str, Any]]) -> list[str]:
    """Set `licenses` of each component; return a line for each of which they are not known.

    Args:
        components: Of the bill of materials, with `name` and `version`.
    """
    wrong = []
    for component in components:
        name, version = component["name"], component.get("version")
        try:
            installed = metadata.distribution(name)
        except metadata.PackageNotFoundError:
            wrong.append(f"{name} is not installed here")
            continue
        licences = licences_of(installed.metadata)
        if installed.version.partition("+")[0] != str(version).partition("+")[0]:
            wrong.append(f"{name} is installed at {installed.version}, not at {version}")
        elif not licences:
            wrong.append(f"{name} states no licence")
        component["licenses"] = licences
    return wrong


def licences_of(stated: metadata.PackageMetadata) -> list[dict[str, Any]]:
    """Return CycloneDX's `licenses`: the SPDX expression; else the name that is given; else the classifiers."""
    if expression := _first(stated, "License-Expression"):
        return [{"expression": expression}]
    written = _first(stated, "License").strip()
    if written and len(written) <= _LONGEST_NAME and "\n" not in written:
        return [_licence(written)]
    classifiers = [line for line in stated.get_all("Classifier") or [] if line.startswith("License ::")]
    return [_licence(line.rpartition(" :: ")[2]) for line in classifiers]


def _first(stated: metadata.PackageMetadata, name: str) -> str:
    return str((stated.get_all(name) or [""])[0])


def _licence(words: str) -> dict[str, Any]:
    return {"license": {"id": _SPDX[words]} if words in _SPDX else {"name": words}}


if __name__ == "__main__":
    sys.exit(main())
