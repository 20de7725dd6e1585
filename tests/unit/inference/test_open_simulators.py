"""What a service for simulators is opened with, and what restarted ones know of each other."""

from __future__ import annotations

from pathlib import Path

from tidemill.services.inference.open_simulators import writer_name
from tidemill.services.inference.resume_token import Identity, Place, place_of
from tidemill.settings.check import is_safe_name


def test_writer_name_is_one_for_each_service_and_run() -> None:
    """And a name that the replay service takes."""
    names = {writer_name(run, index) for run in ("a", "b/c") for index in range(2)}
    assert len(names) == 4
    assert all(map(is_safe_name, names))


def test_token_says_where_an_episode_is() -> None:
    """Only to who has its key; one that was changed anywhere says nothing."""
    key, place = b"k" * 32, Place(epoch=7, slot=3, begin=2**40, nonce=bytes(range(16)))
    token = place.signed(key)
    assert place_of(token, key) == place
    assert place_of(token, b"x" * 32) is None
    for at in range(len(token)):
        changed = token[:at] + bytes([token[at] ^ 1]) + token[at + 1 :]
        assert place_of(changed, key) is None
    assert place_of(token[:-1], key) is None
    assert place_of(b"", key) is None


def test_identity_outlives_the_process(tmp_path: Path) -> None:
    """In a file that others cannot read; a damaged one is as good as none."""
    file = tmp_path / "simulators" / "x.json"
    first = Identity(file)
    first.keep(5)
    second = Identity(file)
    assert (second.key, second.epoch) == (first.key, 5)
    assert file.stat().st_mode & 0o077 == 0
    place = Place(epoch=5, slot=3, begin=9, nonce=bytes(16))
    assert second.moved(place) == place
    moved = second.move(place, 4)
    assert (moved.begin, Identity(file).moved(place)) == (4, moved)
    another = Place(epoch=5, slot=3, begin=9, nonce=bytes(15) + b"1")
    assert Identity(file).moved(another) == another
    file.write_text("{")
    third = Identity(file)
    assert third.epoch == 0
    assert third.key != first.key
    unkept = Identity(None)
    unkept.keep(5)
    assert unkept.epoch == 5
