"""What a server that has the whole table is asked for, by credit and by a schedule."""

from __future__ import annotations

from tidemill.replay.sampling.one_server import OneServer
from tidemill.replay.sampling.plan import Draw
from tidemill.replay.sampling.schedule import Schedule, SeededDraw
from tidemill.replay.v1 import replay_pb2 as pb


def _drawn(server: OneServer) -> Draw:
    plan = server.plan(8)
    assert plan is not None
    (draw,) = plan.draws
    return draw


def test_server_that_is_away_is_asked_nothing() -> None:
    """Nobody else can make up for it, either."""
    server = OneServer()
    assert server.plan(8) is None
    server.join("t")
    plan = server.plan(8)
    assert plan is not None
    assert server.replan(plan, plan.draws) is None
    server.leave("t")
    assert server.plan(8) is None


def test_batches_without_a_schedule_are_credit() -> None:
    """As many as there are draws, in one message; the server's limiter counts them."""
    server, request = OneServer(), pb.SampleRequest()
    server.join("t")
    for _ in range(3):
        _drawn(server).add_to(request)
    assert (request.credit, len(request.draws)) == (3, 0)


def test_batches_that_were_not_taken_are_drawn_again_by_their_numbers() -> None:
    """After a lost call, and after one that was taken is to be drawn once more."""
    server = OneServer(Schedule(lambda number: SeededDraw(100 + number, 10 * number), first=5))
    server.join("t")
    assert [_drawn(server).seed for _ in range(3)] == [105, 106, 107]
    server.taken()
    server.leave("t")
    server.join("t")
    assert _drawn(server).seed == 106
    server.taken()
    server.again()
    server.leave("t")
    server.join("t")
    request = pb.SampleRequest()
    _drawn(server).add_to(request)
    (draw,) = request.draws
    assert (draw.items, draw.counted, draw.seed, draw.at_step_count) == (8, 0, 106, 60)
    assert request.credit == 0
