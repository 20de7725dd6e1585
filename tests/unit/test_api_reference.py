"""docs/api.md: all of the public surface, as the docstrings have it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import tidemill
from scripts import api_reference

_ROOT = Path(__file__).resolve().parents[2]


def test_page_is_what_the_docstrings_say() -> None:
    """`make check` holds this too; a public name that is in no section ends the script."""
    assert api_reference.PAGE.read_text() == api_reference.page()


def test_page_has_every_public_name_and_method() -> None:
    """Each with a separate heading; nothing private."""
    page = api_reference.page()
    for name in set(tidemill.__all__) - {"__version__"}:
        assert f"\n### {name}\n" in page
    signature = "create_table(config: TableConfig, *, redeclare: bool = False) -> bool"
    assert f"\n#### ReplayClient.create_table\n\n```python\n{signature}\n```\n" in page
    assert "#### ReplayClient._" not in page


def test_sections_of_a_docstring_become_lists_and_its_example_code() -> None:
    """By hand."""
    docstring = (
        "Do it.\n\nArgs:\n    first: One thing\n        or two.\n    second: Another.\n\nReturns:\n    What came.\n\n"
        "Example:\n    >>> 1 + 1\n    2\n"
    )
    assert api_reference.markdown(docstring) == (
        "Do it.\n\n**Args**\n\n- `first`: One thing\n  or two.\n- `second`: Another.\n\n**Returns**\n\nWhat came.\n\n"
        "```python\n>>> 1 + 1\n2\n```\n"
    )


def test_check_fails_when_the_page_is_old(tmp_path: Path) -> None:
    """It says what to run."""
    code = (
        "import sys; from pathlib import Path; from scripts import api_reference as a; "
        f"a.PAGE = Path({str(tmp_path / 'api.md')!r}); a.PAGE.write_text('old'); sys.argv = ['', '--check']; "
        "sys.exit(a.main())"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=_ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "run python -m scripts.api_reference" in done.stderr
