"""Hold a CycloneDX bill of materials against the format's schema: `make sbom` runs it with the format's own library."""

from __future__ import annotations

import sys
from pathlib import Path

from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator


def main() -> int:
    """Return 0 if the file keeps to the schema; say otherwise where it does not."""
    error = JsonStrictValidator(SchemaVersion.V1_6).validate_str(Path(sys.argv[1]).read_text(encoding="utf-8"))
    if error is not None:
        print(f"{sys.argv[1]}: {error}", file=sys.stderr)
    return int(error is not None)


if __name__ == "__main__":
    sys.exit(main())
