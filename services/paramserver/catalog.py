"""What the server knows: which versions there are, where tags point, and who may publish.

A catalog never changes; each decision makes a new one. So one thread can prepare the next catalog, and write
it to disk, while others read the current one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from tidemill.errors import FailedPrecondition, InvalidArgument, NotFound, ResourceExhausted
from tidemill.params.version import LATEST, Version, check_tag
from tidemill.services.paramserver.draft import Draft

_GREATEST_ABOVE = 2**62


@dataclass(frozen=True)
class Catalog:
    """One state of the server.

    Attributes:
        versions: Versions by number, oldest first.
        tags: Where tags point, without `latest`; every target is in `versions`.
        generation: Newest generation handed out; 0 before the first.
        high_water: Greatest version number ever taken; the next version gets the number after it.
    """

    versions: Mapping[int, Version] = field(default_factory=dict)
    tags: Mapping[str, int] = field(default_factory=dict)
    generation: int = 0
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
            raise NotFound(f"there is no version {number}; {newest}")
        return self.versions[number]

    def tagged(self, tag: str) -> Version | None:
        """Return the version a tag points at; None when the tag is not set."""
        return self.newest if tag == LATEST else self.versions.get(self.tags.get(tag, 0))

    def repeated(self, draft: Draft) -> Version | None:
        """Return the newest version if the draft is a repeat of the publish that made it."""
        newest = self.newest
        if newest is None:
            return None
        made_by = (newest.generation, newest.base_version, newest.encodings)
        return newest if made_by == (draft.generation, draft.base_version, draft.encodings) else None

    def check_publisher(self, draft: Draft) -> None:
        """Refuse a draft that is not the next version of the current publisher.

        Raises:
            FailedPrecondition: The generation was superseded, or `base_version` is not the newest version.
            InvalidArgument: The generation was never handed out.
        """
        if draft.generation > self.generation:
            raise InvalidArgument(
                f"generation is {draft.generation}, which was not handed out; the newest is {self.generation}"
            )
        if draft.generation < self.generation:
            raise FailedPrecondition(
                f"generation {draft.generation} was superseded by {self.generation}: another publisher came"
            )
        newest = self.newest.version if self.newest else 0
        if draft.base_version != newest:
            raise FailedPrecondition(f"base_version is {draft.base_version}, but the newest version is {newest}")

    def with_generation(self, above: int = 0) -> Catalog:
        """Hand out the next generation, greater than `above` too.

        Raises:
            InvalidArgument: `above` is so great that later ones could run out.
        """
        if above > max(self.generation, _GREATEST_ABOVE):
            raise InvalidArgument(f"above is {above}, allowed: at most {_GREATEST_ABOVE}")
        return replace(self, generation=max(self.generation, above) + 1)

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
                f"tag {tag!r} would be one more than paramserver.max_tags, {max_tags}: move a tag that is there"
            )
        return replace(self, tags={**self.tags, tag: self.find(number).version})

    def expired(self, keep_versions: int) -> tuple[int, ...]:
        """Return the versions that are neither tagged nor among the newest `keep_versions`."""
        kept = {*sorted(self.versions)[-keep_versions:], *self.tags.values()}
        return tuple(number for number in self.versions if number not in kept)

    def without(self, numbers: tuple[int, ...]) -> Catalog:
        """Forget versions."""
        return replace(self, versions={n: version for n, version in self.versions.items() if n not in numbers})
