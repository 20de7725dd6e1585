"""Draw the learning curves of the gallery from runs of examples/.

    cd examples
    for config in *.yaml; do
      tidemill train --config $config --evaluator.no-video --evaluator.start-env-steps 0 --evaluator.min-interval-s 1
    done
    cd ..
    python -m scripts.docs.gallery examples/runs

The run `prior-data` is that of docs/tutorials/prior-data.md, trained with the same three options of the evaluator and
`--run.name prior-data`, and moved to examples/runs.

Each run that examples/README.md shows becomes docs/images/gallery/NAME.svg: mean and one standard deviation of its
evaluations. The drawing has a background, so that it is legible on light and dark pages.
"""

from __future__ import annotations

import csv
import re
import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parents[2]
GALLERY = ROOT / "examples" / "README.md"
IMAGES = ROOT / "docs" / "images" / "gallery"

_WIDTH, _HEIGHT = 400, 180
_LEFT, _RIGHT, _TOP, _BOTTOM = 62, 388, 14, 136
"""Edges of the plot in the picture, in pixels."""


def main(argv: Sequence[str]) -> int:
    """Draw the curve of every run in a folder that the gallery shows; return the exit code."""
    runs = Path(argv[0])
    IMAGES.mkdir(exist_ok=True)
    for name in re.findall(r"images/gallery/([\w-]+)\.svg", GALLERY.read_text(encoding="utf-8")):
        with (runs / name / "scores.csv").open(encoding="utf-8") as file:
            rows = [(int(row["env_steps"]), float(row["mean"]), float(row["std"])) for row in csv.DictReader(file)]
        (IMAGES / f"{name}.svg").write_text(drawing(rows), encoding="utf-8")
    return 0


def drawing(rows: Sequence[tuple[int, float, float]]) -> str:
    """Return a curve as SVG.

    Args:
        rows: Agent decisions, mean and standard deviation of each evaluation, in order.
    """
    low = min(mean - std for _, mean, std in rows)
    high = max(mean + std for _, mean, std in rows)
    steps = max(rows[-1][0], 1)

    def place(step: float, score: float) -> str:
        x = _LEFT + (_RIGHT - _LEFT) * step / steps
        y = _BOTTOM - (_BOTTOM - _TOP) * (score - low) / max(high - low, 1e-9)
        return f"{x:.1f},{y:.1f}"

    upper = [place(step, mean + std) for step, mean, std in rows]
    lower = [place(step, mean - std) for step, mean, std in reversed(rows)]
    curve = [place(step, mean) for step, mean, _ in rows]
    dots = "".join(f'<circle cx="{x}" cy="{y}" r="3" fill="#00796b"/>' for x, y in (at.split(",") for at in curve))
    text = 'font-family="system-ui, sans-serif" font-size="15" fill="#37474f"'
    middle = (_LEFT + _RIGHT) // 2
    return f"""\
<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{_HEIGHT}" viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img">
<rect width="{_WIDTH}" height="{_HEIGHT}" rx="6" fill="#fafafa" stroke="#b0bec5"/>
<path d="M{_LEFT} {_TOP}V{_BOTTOM}H{_RIGHT}" fill="none" stroke="#78909c"/>
<polygon points="{" ".join(upper + lower)}" fill="#26a69a" fill-opacity="0.2"/>
<polyline points="{" ".join(curve)}" fill="none" stroke="#00796b" stroke-width="2.5" stroke-linejoin="round"/>
{dots}
<g {text}>
<text x="{_LEFT - 6}" y="{_TOP + 11}" text-anchor="end">{_label(high)}</text>
<text x="{_LEFT - 6}" y="{_BOTTOM}" text-anchor="end">{_label(low)}</text>
<text x="{_LEFT}" y="{_BOTTOM + 18}">0</text>
<text x="{_RIGHT}" y="{_BOTTOM + 18}" text-anchor="end">{steps:,}</text>
<text x="{middle}" y="{_BOTTOM + 36}" text-anchor="middle">score over agent decisions</text>
</g>
</svg>
"""


def _label(score: float) -> str:
    return f"{score:,.0f}" if abs(score) >= 100 else f"{score:.3g}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
