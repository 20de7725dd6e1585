"""Write docs/api.md from the docstrings of what `tidemill` lists as public.

    python -m scripts.api_reference [--check]

With `--check` nothing is written: it fails when the page is out of date.
"""

from __future__ import annotations

import ast
import dataclasses
import enum
import inspect
import re
import sys
import textwrap
from collections.abc import Iterator
from functools import cached_property
from itertools import pairwise
from pathlib import Path

import tidemill
from scripts.docs.generated import write_or_check
from tidemill.lazy_names import homes

PAGE = Path(__file__).resolve().parents[1] / "docs" / "api.md"


def _sections() -> dict[str, list[str]]:
    """Return every public name once, by the titles that stand above them in `tidemill/__init__.pyi`, in that order."""
    found: dict[str, list[str]] = {}
    for line in Path(tidemill.__file__).with_suffix(".pyi").read_text(encoding="utf-8").splitlines():
        if line.startswith("# "):
            names = found.setdefault(line.removeprefix("# "), [])
        elif line.startswith("from "):
            names.append(line.split()[-1])
    return found


SECTIONS = _sections()

_INTRODUCTION = """# API reference

<!-- Written by `python -m scripts.api_reference` from docstrings: change those, then run it. -->

Use Tidemill from Python:

```python
import tidemill

result = tidemill.train("CartPole-v1", algorithm="dqn")
```

The public interface is the names of `import tidemill`: documented, typed and versioned. Shapes are [B, ...] for a batch
and [N, ...] for the environments of an actor. The examples run as tests against real servers; 7401 to 7403 are the
default ports of the services. [Extending Tidemill](extending.md) shows the interfaces in use.
"""

_GOOGLE = re.compile(r"^(Args|Returns|Raises|Attributes|Yields|Example):$")
_ENTRY = re.compile(r"^(\*{0,2}[A-Za-z_][A-Za-z0-9_]*(?: / [A-Za-z_]\w*)*): (.*)$")


def page() -> str:
    """Return the page."""
    parts = [_INTRODUCTION]
    for title, names in SECTIONS.items():
        links = " · ".join(f"[`{name}`](#{name.lower()})" for name in names)
        parts.append(f"## {title}\n\n{links}\n")
        parts += [_entry(name) for name in names]
    return "\n".join(parts)


def _entry(name: str) -> str:
    value = getattr(tidemill, name)
    if inspect.isclass(value):
        return "\n".join(_class(name, value))
    if inspect.isfunction(value):
        return f"### {name}\n\n{_code(_signature(name, value))}\n{markdown(inspect.getdoc(value) or '')}"
    return f"### {name}\n\n{_code(f'{name} = {_plain(str(value))}')}\n{markdown(_comment_of(name))}"


def _class(name: str, kind: type) -> Iterator[str]:
    yield f"### {name}\n"
    if "__init__" in vars(kind) and not getattr(kind, "_is_protocol", False) and not dataclasses.is_dataclass(kind):
        yield _code(_signature(name, kind.__init__, skip_self=True))  # type: ignore[misc]
        yield markdown(inspect.getdoc(kind) or "")
        yield markdown(inspect.getdoc(kind.__init__) or "")  # type: ignore[misc]
    else:
        yield markdown(inspect.getdoc(kind) or "")
    bases = [base for base in kind.__mro__[1:] if dataclasses.is_dataclass(base)]
    if fields := _fields(kind):
        yield fields
    for base in bases:
        yield f"{markdown(inspect.getdoc(base) or '')}\n{_fields(base)}"
    for key, member in (pair for owner in (kind, *bases) for pair in vars(owner).items()):
        if not key.startswith("_"):
            yield from _member(f"{name}.{key}", member)


def _member(dotted: str, member: object) -> Iterator[str]:
    if isinstance(member, property | cached_property):
        yield f"#### {dotted}\n\n{markdown(inspect.getdoc(member) or '')}"
    elif isinstance(member, classmethod | staticmethod):
        yield from _member(dotted, member.__func__)
    elif inspect.isfunction(member):
        yield f"#### {dotted}\n\n{_code(_signature(dotted.rpartition('.')[2], member, skip_self=True))}"
        yield markdown(inspect.getdoc(member) or "")


def _signature(name: str, function: object, *, skip_self: bool = False) -> str:
    signature = inspect.signature(function)  # type: ignore[arg-type]
    parameters = list(signature.parameters.values())[1 if skip_self else 0 :]
    words, keyword_only = [], False
    for parameter in parameters:
        if parameter.kind is parameter.KEYWORD_ONLY and not keyword_only:
            keyword_only = True
            words.append("*")
        words.append(_parameter(parameter))
    result = (
        ""
        if signature.return_annotation in (inspect.Signature.empty, "None") or name[0].isupper()
        else (f" -> {_plain(str(signature.return_annotation))}")
    )
    line = f"{name}({', '.join(words)}){result}"
    return line if len(line) <= 100 else f"{name}(\n    " + ",\n    ".join(words) + f",\n){result}"


def _parameter(parameter: inspect.Parameter) -> str:
    kind = "" if parameter.annotation is parameter.empty else f": {_plain(str(parameter.annotation))}"
    default = "" if parameter.default is parameter.empty else f" = {_default(parameter.default)}"
    return f"{parameter.name}{kind}{default}"


def _default(value: object) -> str:
    return f"{type(value).__name__}.{value.name}" if isinstance(value, enum.Enum) else repr(value)


def _fields(kind: type) -> str:
    """Return the fields of a dataclass or the members of an enum, as a list if they have docstrings, else as code."""
    (tree,) = ast.parse(textwrap.dedent(inspect.getsource(kind))).body
    assert isinstance(tree, ast.ClassDef)
    is_listed = dataclasses.is_dataclass(kind) or issubclass(kind, enum.Enum)
    found: list[tuple[str, str]] = []
    for node, after in zip(tree.body, [*tree.body[1:], None], strict=True):
        name = _target(node)
        text = _string(after)
        if name and not name.startswith("_") and (text or is_listed):
            code = re.sub(r"field\(default_factory=(?:lambda: )?(\w+)\)", r"\1()", ast.unparse(node))
            code = re.sub(r" = field\(metadata=.*\)", "", code)
            code = re.sub(r"field\(default=(\w+), metadata=.*\)", r"\1", code)
            found.append((re.sub(r"'([^'\"]*)'", r'"\1"', code), text))
    if not found:
        return ""
    if any(text for _, text in found):
        return "".join(f"- `{code}`" + (f": {text}" if text else "") + "\n" for code, text in found)
    return _code("\n".join(code for code, _ in found))


def _target(node: ast.stmt) -> str:
    """Return the name that a statement assigns to; empty if it assigns to none."""
    target = node.targets[0] if isinstance(node, ast.Assign) else getattr(node, "target", None)
    return target.id if isinstance(target, ast.Name) else ""


def _string(node: ast.stmt | None) -> str:
    """Return a string that stands alone, such as the docstring of what is before it; empty if it is something else."""
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
        return " ".join(inspect.cleandoc(node.value.value).split())
    return ""


def _comment_of(name: str) -> str:
    """Return the docstring below a name that is neither a class nor a function, such as a type."""
    module = sys.modules[homes("tidemill")[name]]
    body = ast.parse(inspect.getsource(module)).body
    return next((_string(after) for node, after in pairwise(body) if _target(node) == name), "")


def markdown(docstring: str) -> str:
    """Return a Google-style docstring as Markdown: sections as lists, examples as code."""
    out: list[str] = []
    section = ""
    for line in docstring.splitlines():
        if found := _GOOGLE.match(line):
            section = found[1]
            out += [] if section == "Example" else [f"**{section}**", ""]
        elif section and section != "Example" and line and not line.startswith(" "):
            section = ""
            out.append(line)
        elif section in ("Args", "Attributes", "Raises", "Yields") and (entry := _ENTRY.match(line.strip())):
            is_entry = len(line) - len(line.lstrip()) == 4
            out.append(f"- `{entry[1]}`: {entry[2]}" if is_entry else f"  {line.strip()}")
        elif section and section != "Example":
            out.append(line.strip() if section == "Returns" else f"  {line.strip()}".rstrip())
        else:
            out.append(line)
    return _fenced("\n".join(out)).strip("\n") + "\n"


def _fenced(text: str) -> str:
    """Return text whose indented blocks are fenced code."""
    blocks: list[str] = []
    for block in re.split(r"\n(?=\n)", text):
        lines = block.strip("\n").splitlines()
        if lines and all(line.startswith("    ") or not line for line in lines):
            blocks.append("\n" + _code(textwrap.dedent("\n".join(lines))).rstrip("\n"))
        else:
            blocks.append(block)
    return re.sub(r"\n```\n\n```python\n", "\n\n", "\n".join(blocks))


def _code(text: str) -> str:
    return f"```python\n{text}\n```\n"


def _plain(annotation: str) -> str:
    """Return an annotation without the modules that names come from."""
    return re.sub(r"\b(?:[a-z_]\w*\.)+([A-Z]\w*)", r"\1", annotation).replace("NDArray[Any]", "NDArray")


def main() -> int:
    """Write the page, or check it; return the exit code."""
    return write_or_check(PAGE, page(), "python -m scripts.api_reference", sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())
