"""The server's catalog: versions, tags, and the fencing token of the publisher.

A catalog never changes; each decision makes a new one. So one thread can prepare the next catalog, and write
it to disk, while others read the current one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from tidemill.errors import FailedPrecondition, InvalidArgument, NotFound, Reason, ResourceExhausted
from tidemill.params.version import LATEST, Version, check_tag
from tidemill.services.paramserver.upload import PublishRequest

_MAX_LAST_KNOWN = 2**62


@dataclass(frozen=True)
class Catalog:
    """One state of the server.

    Attributes:
        versions: Versions by number, oldest first.
        tags: Where tags point, without `latest`; every target is in `versions`.
        fencing_token: Newest fencing token handed out; 0 before the first.
        high_water: Greatest version number ever taken, or known to a publisher; the next version gets the number after
            it.
    """

    versions: Mapping[int, Version] = field(default_factory=dict)
    tags: Mapping[str, int] = field(default_factory=dict)
    fencing_token: int = 0
    high_water: int = 0

    @property
    def newest(self) -> Version | None:
        """The newest version, None when there is none."""
        return self.versions[max(self.versions)] if self.versions else None

    @property
    def all_tags(self) -> dict[str, int]:
        """Every tag that points at a version, `latest` included."""
        return dict(self.tags) | ({LATEST: self.newest.version} if self.newest else {})

    def find(self, number: int) -> Version:
        """Return a version by number.

        Raises:
            NotFound: There is no such version, or no longer.
        """
        if number not in self.versions:
            newest = f"the newest is {max(self.versions)}" if self.versions else "there is none yet"
            raise NotFound(f"there is no version {number}; {newest}", reason=Reason.UNKNOWN_VERSION)
        return self.versions[number]

    def tagged(self, tag: str) -> Version | None:
        """Return the version a tag points at; None when the tag is not set."""
        return self.newest if tag == LATEST else self.versions.get(self.tags.get(tag, 0))

    def repeated(self, request: PublishRequest) -> Version | None:
        """Return the newest version if the request is a repeat of the publish that made it."""
        newest = self.newest
        if newest is None:
            return None
        made_by = (newest.fencing_token, newest.base_version, newest.encodings)
        return newest if made_by == (request.fencing_token, request.base_version, request.encodings) else None

    def check_publisher(self, request: PublishRequest) -> None:
        """Refuse a request that is not the next version of the current publisher.

        Raises:
            FailedPrecondition: The fencing token was superseded, or `base_version` is not the newest version.
            InvalidArgument: The fencing token was never handed out.
        """
        if request.fencing_token > self.fencing_token:
            raise InvalidArgument(
                f"fencing_token is {request.fencing_token}, must be one from AcquireFencingToken; "
                f"the newest is {self.fencing_token}"
            )
        self._check_newest(request.fencing_token)
        newest = self.newest.version if self.newest else 0
        if request.base_version != newest:
            raise FailedPrecondition(
                f"base_version is {request.base_version}, but the newest version is {newest}",
                reason=Reason.BASE_VERSION_DIFFERS,
            )

    def with_next_token(self, last_known_token: int = 0, last_known_version: int = 0, held_token: int = 0) -> Catalog:
        """Hand out the next fencing token, greater than `last_known_token` too, or `held_token` again.

        The next version is greater than `last_known_version`.

        Raises:
            FailedPrecondition: `held_token` was superseded.
            InvalidArgument: One of the numbers is so great that later ones could run out.
        """
        _check_known("last_known_token", last_known_token, self.fencing_token)
        _check_known("last_known_version", last_known_version, self.high_water)
        _check_known("held_token", held_token, self.fencing_token)
        if held_token:
            self._check_newest(held_token)
        return replace(
            self,
            fencing_token=held_token or max(self.fencing_token, last_known_token) + 1,
            high_water=max(self.high_water, last_known_version),
        )

    def with_version(self, version: Version) -> Catalog:
        """Add a version with the number after `high_water`."""
        versions = {**self.versions, version.version: version}
        return replace(self, versions=versions, high_water=version.version)

    def with_tag(self, tag: str, number: int, *, max_tags: int) -> Catalog:
        """Point a tag at a version.

        Raises:
            InvalidArgument: The tag is malformed, or `latest`.
            NotFound: There is no such version.
            ResourceExhausted: It is new, and there are `max_tags` tags.
        """
        check_tag(tag)
        if tag == LATEST:
            raise InvalidArgument("tag is 'latest', which always points at the newest version and cannot be set")
        if tag not in self.tags and len(self.tags) >= max_tags:
            raise ResourceExhausted(
                f"tag {tag!r} would exceed paramserver.max_tags ({max_tags}); move an existing tag, or raise it",
                reason=Reason.TOO_MANY_TAGS,
            )
        return replace(self, tags={**self.tags, tag: self.find(number).version})

    def expired(self, keep_versions: int) -> tuple[int, ...]:
        """Return the versions that are neither tagged nor among the newest `keep_versions`."""
        kept = {*sorted(self.versions)[-keep_versions:], *self.tags.values()}
        return tuple(number for number in self.versions if number not in kept)

    def without(self, numbers: tuple[int, ...]) -> Catalog:
        """Forget versions."""
        return replace(self, versions={n: version for n, version in self.versions.items() if n not in numbers})

    def _check_newest(self, fencing_token: int) -> None:
        if fencing_token < self.fencing_token:
            raise FailedPrecondition(
                f"fencing token {fencing_token} was superseded by {self.fencing_token}: "
                "another publisher has taken over",
                reason=Reason.FENCING_TOKEN_SUPERSEDED,
            )


def _check_known(name: str, known: int, own: int) -> None:
    if known > max(own, _MAX_LAST_KNOWN):
        raise InvalidArgument(f"{name} is {known}, allowed: at most {_MAX_LAST_KNOWN}")
