"""Tokens by which a client continues its episode, also at a service that was restarted in the meantime.

A token says where the episode's rows are in the streams of the service's writer, and is signed with a key that only
the service has. So a restarted service, which knows of no episode, learns from the token and from the replay service
how many of its steps are stored.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import secrets
import struct
from dataclasses import dataclass, replace
from pathlib import Path

import structlog

from tidemill.atomic_files import make_folder, write_atomically
from tidemill.errors import FatalError

_PLACE = struct.Struct("<QIQ16s")
_SIGNATURE_BYTES = 32
_KEY_BYTES = 32

_log = structlog.get_logger()


@dataclass(frozen=True)
class Place:
    """Where an episode is.

    Attributes:
        epoch: Of the writer's streams.
        slot: Number of the stream.
        begin: Number of the episode's first row in its stream.
        nonce: Differs between any two episodes.
    """

    epoch: int
    slot: int
    begin: int
    nonce: bytes

    def signed(self, key: bytes) -> bytes:
        """Return the token."""
        place = _PLACE.pack(self.epoch, self.slot, self.begin, self.nonce)
        return place + hmac.digest(key, place, hashlib.sha256)


def place_of(token: bytes, key: bytes) -> Place | None:
    """Return the place that a token names; None if it was not signed with the key."""
    if len(token) != _PLACE.size + _SIGNATURE_BYTES:
        return None
    place = token[: _PLACE.size]
    if not hmac.compare_digest(hmac.digest(key, place, hashlib.sha256), token[_PLACE.size :]):
        return None
    return Place(*_PLACE.unpack(place))


class Identity:
    """What a restarted service must know of the one before it: the key of its tokens, and the epoch of its streams."""

    def __init__(self, file: Path | None) -> None:
        """Read the file, or begin with a new key.

        Args:
            file: Where they are kept; None: nowhere, so that a restart ends the episodes.

        Raises:
            FatalError: The system cannot read the file just now; a new key in its place would end the episodes.
        """
        self._file, self.key, self.epoch = file, secrets.token_bytes(_KEY_BYTES), 0
        self._moved: dict[str, tuple[str, int]] = {}  # nonce and first row of the episode that was moved, by slot
        if file is not None:
            try:
                kept = json.loads(file.read_text(encoding="utf-8"))
                self.key, self.epoch = bytes.fromhex(kept["key"]), int(kept["epoch"])
                self._moved = {str(slot): (str(nonce), int(begin)) for slot, (nonce, begin) in kept["moved"].items()}
            except (FileNotFoundError, ValueError, KeyError, TypeError):
                pass
            except OSError as error:
                advice = "if it stays unreadable, remove it: the simulators' present episodes then end"
                raise FatalError(f"cannot read {file}: {error.strerror}; {advice}") from error

    def keep(self, epoch: int) -> None:
        """Note the epoch of the streams; a disk that refuses it costs no more than what a restart would save."""
        if epoch == self.epoch:
            return
        self.epoch = epoch
        self._moved.clear()
        self._write()

    def move(self, place: Place, begin: int) -> Place:
        """Note that an episode begins at another row than its token says; return its place."""
        self._moved[str(place.slot)] = place.nonce.hex(), begin
        self._write()
        return replace(place, begin=begin)

    def moved(self, place: Place) -> Place:
        """Return where the episode of a token is."""
        nonce, begin = self._moved.get(str(place.slot), ("", 0))
        return replace(place, begin=begin) if nonce == place.nonce.hex() else place

    def _write(self) -> None:
        if self._file is None:
            return
        try:
            make_folder(self._file.parent)
            os.chmod(self._file.parent, 0o700)  # before the file is there
            write_atomically(self._file, json.dumps({"epoch": self.epoch, "key": self.key.hex(), "moved": self._moved}))
            os.chmod(self._file, 0o600)
        except OSError as error:
            _log.warning("episodes will not survive a restart of this service", file=str(self._file), reason=str(error))
            self._file = None
