"""What TensorBoard would show of a folder of event files."""

from __future__ import annotations

from pathlib import Path

from tensorboard.backend.event_processing.event_file_loader import EventFileLoader


def scalars(folder: Path, tag: str) -> list[tuple[int, float]]:
    """Return step and value of each point of one curve in the event files of a folder."""
    events = [event for file in sorted(folder.glob("events.*")) for event in EventFileLoader(str(file)).Load()]
    return [
        (event.step, value.simple_value if value.HasField("simple_value") else value.tensor.float_val[0])
        for event in events
        for value in event.summary.value
        if value.tag == tag
    ]


def images(folder: Path) -> list[tuple[str, int, int, int, bytes]]:
    """Return tag, step, width, height and file of each picture in the event files of a folder."""
    events = [event for file in sorted(folder.glob("events.*")) for event in EventFileLoader(str(file)).Load()]
    values = [(event.step, value) for event in events for value in event.summary.value]
    found = [(value.tag, step, list(value.tensor.string_val)) for step, value in values if value.HasField("tensor")]
    return [(tag, step, int(parts[0]), int(parts[1]), parts[2]) for tag, step, parts in found if len(parts) == 3]
