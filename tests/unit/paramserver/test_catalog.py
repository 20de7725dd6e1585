"""Who may publish, where tags point, and what is kept."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.naming import because, naming
from tests.support.publishing import METADATA, NOON, encoding, request_of
from tidemill.errors import FailedPrecondition, InvalidArgument, NotFound, Reason, ResourceExhausted
from tidemill.params.version import Encoding, Precision, Version
from tidemill.services.paramserver.catalog import Catalog
from tidemill.services.paramserver.upload import PublishRequest


def _version(number: int, *, fencing_token: int = 1) -> Version:
    return Version(number, number - 1, fencing_token, NOON, METADATA, (encoding(b"%d" % number),))


def _catalog(*numbers: int, fencing_token: int = 1) -> Catalog:
    catalog = Catalog(fencing_token=fencing_token)
    for number in numbers:
        catalog = catalog.with_version(_version(number))
    return catalog


def test_fencing_token_is_above_the_one_its_publisher_knows() -> None:
    """A server that lost its count continues above a checkpoint's; a count that could run out is refused."""
    assert Catalog(fencing_token=1).with_next_token().fencing_token == 2
    assert Catalog(fencing_token=1).with_next_token(7).fencing_token == 8
    assert Catalog(fencing_token=9).with_next_token(7).fencing_token == 10
    with pytest.raises(InvalidArgument, match=naming("last_known_token")):
        Catalog().with_next_token(2**63)
    assert Catalog(fencing_token=2**63).with_next_token(2**63).fencing_token == 2**63 + 1


def test_next_version_is_above_the_one_its_publisher_knows() -> None:
    """No number is used twice by a server that lost its versions; numbers that could run out are refused."""
    assert Catalog().with_next_token(7, 812).high_water == 812
    assert _catalog(1, 2).with_next_token(0, 1).high_water == 2
    with pytest.raises(InvalidArgument, match=naming("last_known_version")):
        Catalog().with_next_token(0, 2**63)


def test_held_fencing_token_is_given_again_unless_superseded() -> None:
    """A server that lost versions, and maybe the token, lets its publisher continue with the token that it has."""
    for handed_out in (0, 6, 7):
        catalog = _catalog(1, fencing_token=handed_out).with_next_token(0, 812, 7)
        assert (catalog.fencing_token, catalog.high_water) == (7, 812)
    with pytest.raises(
        FailedPrecondition, match=naming("fencing 7 superseded 8"), check=because(Reason.FENCING_TOKEN_SUPERSEDED)
    ):
        Catalog(fencing_token=8).with_next_token(0, 812, 7)
    with pytest.raises(InvalidArgument, match=naming("held_token")):
        Catalog().with_next_token(0, 0, 2**63)


def test_publisher_with_the_newest_base_and_fencing_token_is_accepted() -> None:
    """The current publisher may build on the newest version, 0 standing for none."""
    Catalog(fencing_token=1).check_publisher(request_of(b"a"))
    _catalog(1, 2).check_publisher(request_of(b"a", base_version=2))


def test_superseded_fencing_token_is_refused() -> None:
    """A newer publisher shuts out the older one, whatever it builds on."""
    with pytest.raises(FailedPrecondition, match=naming("fencing 1 superseded 2")):
        _catalog(1, fencing_token=2).check_publisher(request_of(b"a", base_version=1))


def test_fencing_token_that_was_not_handed_out_is_invalid() -> None:
    """Nobody can make up a fencing token."""
    with pytest.raises(InvalidArgument, match=naming("fencing_token 3")):
        _catalog(1, fencing_token=2).check_publisher(request_of(b"a", fencing_token=3, base_version=1))


@pytest.mark.parametrize("base_version", [0, 1, 3])
def test_base_that_is_not_the_newest_is_refused(base_version: int) -> None:
    """A publisher that missed a version, or knows one that is lost, gets the newest number."""
    with pytest.raises(
        FailedPrecondition, match=naming("base_version", base_version, 2), check=because(Reason.BASE_VERSION_DIFFERS)
    ):
        _catalog(1, 2).check_publisher(request_of(b"a", base_version=base_version))


def test_repeat_of_the_newest_version_is_recognised() -> None:
    """Same fencing token, base and checksums are the same publish; any difference makes another."""
    catalog = _catalog(1, 2)
    assert catalog.repeated(request_of(b"2", base_version=1)) == _version(2)
    assert catalog.repeated(request_of(b"x", base_version=1)) is None
    assert catalog.repeated(request_of(b"2", base_version=2)) is None
    assert catalog.repeated(request_of(b"2", base_version=1, fencing_token=2)) is None
    assert catalog.repeated(request_of(b"1")) is None
    assert Catalog().repeated(request_of(b"1")) is None


def test_tag_points_where_it_was_set_and_latest_at_the_newest() -> None:
    """`latest` needs no setting and moves by itself."""
    catalog = _catalog(1, 2).with_tag("best", 1, max_tags=10)
    assert catalog.tagged("best") == _version(1)
    assert catalog.tagged("latest") == _version(2)
    assert catalog.tagged("other") is None
    assert catalog.all_tags == {"best": 1, "latest": 2}
    assert Catalog().all_tags == {}


@pytest.mark.parametrize("tag", ["", "latest", "Best", "1st", "a/b", "..", "a" * 64, "best\n"])
def test_bad_tag_is_invalid(tag: str) -> None:
    """Names that are malformed, or `latest`, cannot be set."""
    with pytest.raises(InvalidArgument, match=naming("tag")):
        _catalog(1).with_tag(tag, 1, max_tags=10)


def test_tag_on_a_missing_version_is_not_found() -> None:
    """The message names the version and the newest one."""
    with pytest.raises(NotFound, match=naming("version 7 2"), check=because(Reason.UNKNOWN_VERSION)):
        _catalog(1, 2).with_tag("best", 7, max_tags=10)
    with pytest.raises(NotFound, match="none yet"):
        Catalog().with_tag("best", 1, max_tags=10)


def test_tag_beyond_the_limit_is_refused_and_those_there_still_move() -> None:
    """A new tag is refused by name and limit; a tag that is set moves on."""
    catalog = _catalog(1, 2).with_tag("a", 1, max_tags=2).with_tag("b", 1, max_tags=2)
    with pytest.raises(
        ResourceExhausted, match=naming("'c' paramserver.max_tags 2"), check=because(Reason.TOO_MANY_TAGS)
    ):
        catalog.with_tag("c", 1, max_tags=2)
    assert catalog.with_tag("b", 2, max_tags=2).tags == {"a": 1, "b": 2}


@given(
    numbers=st.sets(st.integers(1, 30)),
    tagged=st.lists(st.integers(1, 30), max_size=3),
    keep_versions=st.integers(1, 10),
)
def test_retention_keeps_the_newest_and_the_tagged(numbers: set[int], tagged: list[int], keep_versions: int) -> None:
    """Exactly the versions that are neither tagged nor among the newest N expire."""
    catalog = _catalog(*sorted(numbers))
    for i, number in enumerate(tagged):
        if number in numbers:
            catalog = catalog.with_tag(f"t{i}", number, max_tags=10)
    expired = catalog.expired(keep_versions)
    left = catalog.without(expired)
    for number in numbers:
        newer = sum(other > number for other in numbers)
        assert (number in left.versions) == (newer < keep_versions or number in catalog.tags.values())
    assert left.newest == catalog.newest
    assert left.all_tags == catalog.all_tags


@pytest.mark.parametrize(
    "announced, reason",
    [
        (request_of(b"a", fencing_token=0), "fencing_token 0"),
        (PublishRequest(1, 0, METADATA, ()), "encodings"),
        (PublishRequest(1, 0, METADATA, (encoding(b"a", Precision.HALF),)), "encodings"),
        (PublishRequest(1, 0, METADATA, (encoding(b"a"), encoding(b"b"))), "encodings"),
        (request_of(b""), "size_bytes 0"),
        (PublishRequest(1, 0, METADATA, (Encoding(Precision.FULL, 1, b"short"),)), "32"),
    ],
)
def test_request_out_of_range_is_invalid(announced: PublishRequest, reason: str) -> None:
    """Each wrong field is named with its value."""
    with pytest.raises(InvalidArgument, match=naming(reason)):
        announced.check(10)


def test_request_over_the_size_limit_is_refused_by_its_declared_size() -> None:
    """Nothing is received for it, so its size alone decides."""
    request_of(b"a" * 10).check(10)
    with pytest.raises(ResourceExhausted, match=naming("size_bytes 11 10")):
        request_of(b"a" * 11).check(10)
