"""Which key may do what, request by request; tests/server/test_daemon_keys.py has the same with sockets.

Seen to fail: without `rights.require` in `Core.receive` nothing is refused, without `detach_others` a stolen routing id
is enough, without `_believe_last` neither is a run of keys ended.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from shards import ASYNC, MINIBATCH, Shard, add, code, pull, report, shard, statistics

from glovewire.common.endings import Ending
from glovewire.common.errors import NotPermitted
from glovewire.common.model.tensor_layout import ModelSpec
from glovewire.common.protocol import messages as m
from glovewire.common.roles import Client, Role
from glovewire.common.storage.dataset import Dataset
from glovewire.server.core import rights

ANNA, BERT = Client("anna", Role.WORKER), Client("bert", Role.WORKER)
EVE, BOSS = Client("eve", Role.MONITOR), Client("boss", Role.ADMIN)
SPEC = np.frombuffer(ModelSpec.of({"w": np.zeros((2, 3), np.float32)}, ()).text.encode(), np.uint8)
TRAIN, READ, RULE = {Role.WORKER, Role.ADMIN}, set(Role), {Role.ADMIN}


@pytest.fixture
def one(dataset: Dataset) -> Shard:
    return shard(dataset, **ASYNC)


def hello(of: Shard, name: str, role: str = "worker", incarnation: int = 1) -> m.Hello:
    return m.Hello(role, name, incarnation, of.dataset.checksum if role == "worker" else "")


def join(of: Shard, client: Client, name: str = "", peer: bytes = b"") -> None:
    """Open the session that the client's role may have."""
    name = name or client.name
    role = "observer" if client.role is Role.MONITOR else "worker"
    assert isinstance(of.ask(peer or name.encode(), hello(of, name, role), client=client), m.Welcome)


REQUESTS: dict[str, tuple[set[Role], Callable[[Shard, str], m.Message]]] = {
    "Hello, worker": (TRAIN, lambda of, name: hello(of, f"{name}.2")),
    "Hello, observer": (READ, lambda of, name: hello(of, f"{name}.2", "observer")),
    "Hello, of no role": (TRAIN, lambda of, name: hello(of, f"{name}.2", "boss")),
    "Heartbeat": (READ, lambda *_: m.Heartbeat()),
    "Leave": (READ, lambda *_: m.Leave(Ending.LEFT)),
    "Leave, failed": (READ, lambda *_: m.Leave(Ending.FAILED)),
    "Pull": (READ, lambda *_: pull(0, 2)),
    "GetStatus": (READ, lambda *_: m.GetStatus()),
    "GetHistory": (READ, lambda *_: m.GetHistory(0)),
    "GetWords": (READ, lambda *_: m.GetWords(0, 1)),
    "GetData": (TRAIN, lambda *_: m.GetData("manifest.json", 0)),
    "Lease": (TRAIN, lambda *_: m.Lease(1)),
    "Push": (TRAIN, lambda of, _: add(of, 1)),
    "Report": (TRAIN, lambda *_: report(1)),
    "Score": (TRAIN, lambda *_: m.Score("test", 1.0)),
    "Proceed": (TRAIN, lambda *_: m.Proceed(1)),
    "Create": (TRAIN, lambda *_: m.Create(SPEC)),
    "Create, to attach": (READ, lambda *_: m.Create()),
    "Checkpoint": (RULE, lambda *_: m.Checkpoint(-1)),
    "Finish, complete": (RULE, lambda *_: m.Finish(Ending.COMPLETE)),
    "Finish, failed": (RULE, lambda *_: m.Finish(Ending.FAILED)),
}
"""Kinds of requests -> the roles that may send them."""


@pytest.mark.parametrize("client", [ANNA, EVE, BOSS], ids=lambda client: client.role)
@pytest.mark.parametrize("kind", REQUESTS)
def test_a_role_may_send_some_requests_and_others_change_nothing(one: Shard, kind: str, client: Client) -> None:
    roles, request = REQUESTS[kind]
    join(one, BERT)
    join(one, client, peer=b"p")
    before, samples = one.state.table.values.copy(), len(one.samples)
    reply = one.ask(b"p", request(one, client.name), client=client)
    assert (code(reply) == "not-permitted") == (client.role not in roles)
    if client.role not in roles:
        assert isinstance(reply, m.Refused)
        assert f"{client.name!r} is for the role {client.role}" in reply.text
        assert "glovewire keys DIR --add --role" in reply.text
        assert np.array_equal(one.state.table.values, before)
        assert len(one.samples) == samples
        assert statistics(one)["state"] == "serving"


def test_every_request_has_its_right() -> None:
    assert {kind.__name__ for kind in rights.RIGHTS} == {kind.partition(",")[0] for kind in REQUESTS}


@pytest.mark.parametrize("client", [ANNA, EVE, BOSS], ids=lambda client: client.role)
def test_what_is_not_in_the_table_no_key_may_send(client: Client) -> None:
    with pytest.raises(NotPermitted):
        rights.require(client, m.Left())


def test_without_keys_all_have_all_rights(one: Shard) -> None:
    for kind, (_, request) in REQUESTS.items():
        assert code(one.ask(b"p", request(one, "w0"))) != "not-permitted", kind


@pytest.mark.parametrize("name", ["bert", "bert.1", "annabel", "anna-2", "Anna", "all", "x.anna"])
@pytest.mark.parametrize("client", [ANNA, EVE._replace(name="anna"), BOSS._replace(name="anna")], ids=lambda c: c.role)
@pytest.mark.parametrize("role", ["worker", "observer"])
def test_a_key_has_names_of_its_own(one: Shard, name: str, client: Client, role: str) -> None:
    join(one, BERT)
    reply = one.ask(b"p", hello(one, name, role), client=client)
    assert code(reply) == "not-permitted"
    assert isinstance(reply, m.Refused)
    if role == "observer" or client.role is not Role.MONITOR:
        assert f"may not take the name '{name}': take anna, or a name that begins with anna." in reply.text
    assert list(one.state.sessions.by_name) == ["bert"]


def test_several_workers_may_share_a_key(one: Shard) -> None:
    for name in ("anna", "anna.1", "anna.host-17"):
        join(one, ANNA, name)
    assert [each.name for each in one.state.sessions.workers] == ["anna", "anna.1", "anna.host-17"]


def test_the_routing_id_of_another_client_is_no_session_of_his(dataset: Dataset) -> None:
    """A client may choose its routing id, and a ROUTER lets it have that of one whose connection is lost."""
    one = shard(dataset, **MINIBATCH)
    join(one, ANNA, peer=b"p")
    assert isinstance(one.ask(b"p", add(one, 1), client=ANNA), m.Applied)
    for request in (add(one, 2), pull(0, 2), m.Heartbeat(), report(1)):
        assert code(one.ask(b"p", request, client=BERT)) == "unknown-session"
    assert isinstance(one.ask(b"p", m.Leave(Ending.LEFT), client=BERT), m.Left)
    join(one, BERT, peer=b"p")
    assert [each.name for each in one.state.sessions.workers] == ["anna", "bert"]
    join(one, ANNA, peer=b"q")  # after she has connected again
    assert isinstance(one.ask(b"q", add(one, 2), client=ANNA), m.Applied)
    assert not one.events("left") + one.events("lost")


def test_revoking_keys_ends_their_sessions_and_no_others(one: Shard) -> None:
    for client, name in ((ANNA, "anna"), (ANNA, "anna.2"), (BERT, "bert"), (EVE, "eve.1")):
        join(one, client, name)
    leased = one.ask(b"anna", m.Lease(1), client=ANNA)
    assert isinstance(leased, m.Granted)
    one.carry_out(one.core.revoke([ANNA, EVE], one.now))
    assert list(one.state.sessions.by_name) == ["bert"]
    assert one.events("lost") == ["anna", "anna.2"]
    again = one.ask(b"bert", m.Lease(1), client=BERT)
    assert isinstance(again, m.Granted)
    assert again.round == leased.round
    assert code(one.ask(b"anna", add(one, 1), client=ANNA)) == "unknown-session"


# ---- how a run ends without `Finish`


@pytest.mark.parametrize("number", [0, 1])
@pytest.mark.parametrize("ending", Ending)
def test_the_last_worker_that_leaves_is_believed_what_the_shard_cannot_know(
    dataset: Dataset, ending: Ending, number: int
) -> None:
    one = shard(dataset, number=number, shards=2, workers=2)
    one.hello("anna")
    one.ask(b"anna", m.Leave(ending, "so"))
    assert one.state.over is None  # others have yet to come
    for index, name in enumerate(("anna", "bert")):
        one.hello(name, incarnation=2, worker=index if number else None)
    one.hello("eye", role="observer")
    for name in ("eye", "anna"):
        one.ask(name.encode(), m.Leave(ending, "so"))
        assert one.state.over is None  # others still train
    one.ask(b"bert", m.Leave(ending, "so"))
    of_runs = {Ending.COMPLETE, Ending.ASKED, Ending.STOPPED}
    run_is_over = ending is Ending.FAILED or (number == 1 and ending in of_runs)
    assert one.state.over == ((ending, "so") if run_is_over else None)


# ---- audit


def audited(
    of: Shard, peer: bytes, message: m.Message, client: Client | None = None
) -> list[tuple[str, dict[str, str]]]:
    return list(of.carry_out(of.core.receive(peer, 1, message, of.now, client)).audit)


@pytest.mark.parametrize("client", [BOSS, None], ids=["keys", "open"])
def test_joins_finishes_and_refusals_are_audited(one: Shard, client: Client | None) -> None:
    joined = ("joined", {"name": "boss.1", "as": "worker"})
    assert audited(one, b"p", hello(one, "boss.1"), client) == [joined]
    assert audited(one, b"p", hello(one, "boss.1"), client) == []  # resumed
    (refused,) = audited(one, b"p", pull(0, 99), client)
    assert refused[0] == "refused"
    assert refused[1].items() >= {"request": "Pull", "code": "bad-request"}.items()
    assert audited(one, b"p", report(7), client) == []  # out of order, which happens in a normal run
    assert audited(one, b"p", m.Finish(Ending.ASKED), client) == [("finish", {"ending": "asked"})]


def test_what_a_role_does_not_include_is_audited(one: Shard) -> None:
    ((what, facts),) = audited(one, b"p", m.Finish(Ending.ASKED), EVE)
    assert (what, facts["request"], facts["code"]) == ("refused", "Finish", "not-permitted")
