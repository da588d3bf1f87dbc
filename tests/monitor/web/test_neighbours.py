"""Nearest words of running servers: every row of all shards, in pieces; errors are reported, and nothing waits."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import numpy as np
import pytest
from monitor_fakes import until
from shards import ASYNC, Shard, in_memory, served, shard

from glovewire.common.model.neighbours import Found, unit_rows
from glovewire.common.model.postprocess import flatten_spectrum
from glovewire.common.model.subwords import fit
from glovewire.common.storage.run_folder import write_trained, write_vectors
from glovewire.monitor.web import neighbours as module
from glovewire.monitor.web import neighbours_panel, unseen
from glovewire.monitor.web.neighbours import FRESH_S, RunLookup, ServerLookup
from glovewire.server.daemon import Daemon

LOCAL = "tcp://127.0.0.1:0"


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[list[tuple[Shard, Daemon]]]:
    """Two shards of one training."""
    dataset = in_memory(tmp_path / "d")
    with ExitStack() as stack:
        found = []
        for number in (0, 1):
            (tmp_path / str(number)).mkdir()
            one = shard(dataset, number=number, shards=2, now=time.monotonic(), **ASYNC)
            daemon = Daemon(one.core, tmp_path / str(number), LOCAL, LOCAL)
            stack.enter_context(served(daemon))
            found.append((one, daemon))
        yield found


def test_it_asks_all_shards_for_all_rows_in_pieces(
    servers: list[tuple[Shard, Daemon]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "PIECE_BYTES", 500)
    monkeypatch.setattr(module, "PIECE_WORDS", 3)
    lookup = ServerLookup(lambda: [daemon.address for _, daemon in reversed(servers)])
    lookup.refresh(5.0)
    seen = [lookup.progress]

    def again() -> None:
        lookup.step()
        seen.append(lookup.progress)

    until(lambda: lookup.progress is None, "every row", again)
    assert lookup.error == ""
    vectors = lookup.vectors
    assert vectors is not None
    assert len(set(seen)) > 4, "in pieces"
    first = servers[0][0]
    dataset = first.dataset
    assert vectors.words == [dataset.words[word] for word in dataset.permutation]
    rows = np.concatenate([one.state.table.values for one, _ in servers])
    assert first.state.options.spectrum != 1.0
    written = flatten_spectrum(rows[:, : first.state.options.dim].copy(), first.state.options.spectrum)
    np.testing.assert_allclose(vectors.rows, unit_rows(written), rtol=2e-5, atol=1e-6)
    near = vectors.nearest(Found(vectors.rows[3], 3), 2)
    assert near[0][1] == pytest.approx(max(np.delete(vectors.rows @ vectors.rows[3], 3)))
    assert vectors.find("no one says this") is None

    pulls = first.state.counters["pulls"]
    lookup.refresh(5.0 + FRESH_S - 0.1)
    assert lookup.progress is None, "what is fresh is not asked for again"
    lookup.refresh(5.0 + FRESH_S)
    until(lambda: lookup.progress is None, "every row again", again)
    assert first.state.counters["pulls"] > pulls
    lookup.close()
    lookup.close()


def test_unseen_words_are_composed_as_in_the_finished_run(servers: list[tuple[Shard, Daemon]], tmp_path: Path) -> None:
    lookup = ServerLookup(lambda: [daemon.address for _, daemon in servers])

    def search(word: str, now: float, says: str) -> str:
        lookup.refresh(now, word)
        until(lambda: says in neighbours_panel.neighbours(word, lookup, now), says, lookup.step)
        return neighbours_panel.neighbours(word, lookup, now)

    one, dataset = servers[0][0], servers[0][0].dataset
    search("w01", 0.0, "nearest to w01 by cosine")
    assert lookup.vectors_for("w019")[0] is lookup.vectors, "nothing is fitted before an unseen word is asked for"
    shown = search("w019", 1.0, "nearest to w019 by cosine · unseen: composed of its n-grams")

    options = one.state.options
    assert options.subwords > 0
    rows = np.concatenate([each.state.table.values for each, _ in servers])[:, : options.dim]
    vectors = np.empty_like(rows)
    vectors[dataset.permutation] = rows
    (tmp_path / "run").mkdir()
    write_trained(tmp_path / "run", dataset, options, vectors, {})
    finished = RunLookup(tmp_path / "run")
    finished.refresh(0.0)
    assert finished.vectors is not None
    found = finished.vectors.look_up("w019")
    assert found is not None
    for word, cosine in finished.vectors.nearest(found, 10):
        assert f"<td>{word}</td>" in shown
        assert f"{cosine:.2f}" in shown
    assert "composed" not in search("w01", 1.0, "nearest to w01")
    assert "not among the 25 words</p>" in search("no n-gram", 1.0, "not among")

    first = lookup.vectors_for("w019")
    search("w019", unseen.REFIT_S - 1, "composed of its n-grams")
    until(lambda: lookup.progress is None, "the rows", lookup.step)
    lookup.step()
    assert lookup.vectors_for("w019") == first, "n-grams are fitted now and then"
    lookup.refresh(2 * unseen.REFIT_S, "w019")
    until(lambda: lookup.vectors_for("w019")[1] == 2 * unseen.REFIT_S, "n-grams of the newer rows", lookup.step)
    lookup.close()
    lookup.close()


def test_without_ngrams_or_room_for_them_an_unseen_word_is_not_composed(
    servers: list[tuple[Shard, Daemon]], monkeypatch: pytest.MonkeyPatch
) -> None:
    def shown() -> str:
        with closing(ServerLookup(lambda: [daemon.address for _, daemon in servers])) as lookup:
            lookup.refresh(0.0, "w019")
            until(lambda: lookup.progress is None, "the rows", lookup.step)
            lookup.step()
            return neighbours_panel.neighbours("w019", lookup, 0.0)

    monkeypatch.setattr(unseen, "MAX_BYTES", 99)
    assert f"w019 is not among the 25 words: {unseen.TOO_MANY}</p>" in shown()
    for one, _ in servers:
        one.state.options = dataclasses.replace(one.state.options, subwords=0.0)
    assert "w019 is not among the 25 words</p>" in shown()


@pytest.mark.parametrize(
    ("limits", "which", "says"),
    [
        ({}, [], "no server has published"),
        ({}, [0], "only 1 of 2 shards"),
        ({"MAX_BYTES": 10}, [0, 1], "too many to fetch"),
    ],
)
def test_what_cannot_be_had_is_said(
    servers: list[tuple[Shard, Daemon]],
    monkeypatch: pytest.MonkeyPatch,
    limits: dict[str, int],
    which: list[int],
    says: str,
) -> None:
    for name, value in limits.items():
        monkeypatch.setattr(module, name, value)
    lookup = ServerLookup(lambda: [servers[number][1].address for number in which])
    lookup.refresh(0.0)
    until(lambda: lookup.progress is None, "an end", lookup.step)
    assert says in lookup.error
    assert lookup.vectors is None
    lookup.close()


def test_waiting_for_a_silent_server_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ANSWER_S", 0.05)
    lookup = ServerLookup(lambda: ["tcp://127.0.0.1:1"])
    lookup.refresh(0.0)
    until(lambda: lookup.progress is None, "an end", lookup.step)
    assert "tcp://127.0.0.1:1 does not answer" in lookup.error


def test_a_finished_run_answers_from_its_folder(tmp_path: Path) -> None:
    lookup = RunLookup(tmp_path)
    lookup.refresh(0.0)
    assert lookup.error
    write_vectors(tmp_path, ["one", "two", "three"], np.array([[1, 0], [2, 1], [-1, 0]], np.float32))
    lookup = RunLookup(tmp_path)
    lookup.refresh(0.0)
    assert lookup.vectors is not None
    found = lookup.vectors.look_up("ONE")
    assert found is not None
    near = lookup.vectors.nearest(found, 5)
    assert [word for word, _ in near] == ["two", "three"]
    assert near[0][1] == pytest.approx(2 / 5**0.5)
    assert lookup.vectors.look_up("fours") is None
    assert "ago" not in neighbours_panel.neighbours("one", lookup, 100.0), "they are final"


def test_a_finished_run_with_ngrams_knows_unseen_words(tmp_path: Path) -> None:
    words, vectors = ["one", "ones"], np.eye(2, 3, dtype=np.float32)
    write_vectors(tmp_path, words, vectors, subwords=fit(words, vectors, 0.5))
    lookup = RunLookup(tmp_path)
    lookup.refresh(0.0)
    assert lookup.vectors is not None
    found = lookup.vectors.look_up("onesie")
    assert found is not None
    assert found.row is None
    assert lookup.vectors.nearest(found, 1)[0][0] == "ones"
