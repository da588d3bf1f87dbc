"""How long workers may hold strips that others wait for."""

from __future__ import annotations

from glovewire.server.leases.patience import CHECK_EVERY_S, Held, Patience

PATIENCE_S = 8.0
STRIPS = range(20)


def seconds_until_overdue(patience: Patience, held: dict[int, Held], start: float) -> tuple[float, list[str]]:
    """Check each second, until a worker is overdue; how long that took, and who it is."""
    for passed in range(1000):
        overdue = patience.check(0, held, start + passed * CHECK_EVERY_S)
        if overdue:
            return passed * CHECK_EVERY_S, overdue
    raise AssertionError("no one is overdue")


def in_turn(patience: Patience, *names: str) -> list[float]:
    """For how long each worker can hold a strip of its own, one after the other."""
    found, now = [], 0.0
    for number, name in enumerate(names):
        took, overdue = seconds_until_overdue(patience, {number: (STRIPS[number], name)}, now)
        assert overdue == [name]
        found.append(took)
        now += took + CHECK_EVERY_S
    return found


def test_workers_that_never_bring_anything_do_not_cost_the_patience_each() -> None:
    found = in_turn(Patience(PATIENCE_S), *(f"hoarder{number}" for number in range(6)))
    assert sum(found) <= 2 * PATIENCE_S + len(found) * 3 * CHECK_EVERY_S
    assert found[0] >= PATIENCE_S


def test_a_worker_that_has_reported_a_strip_keeps_its_time() -> None:
    patience = Patience(PATIENCE_S)
    patience.reported("honest")
    *_, last = in_turn(patience, "hoarder0", "hoarder1", "honest")
    assert last >= PATIENCE_S


def test_its_own_faults_do_not_shorten_the_time_of_a_slow_worker() -> None:
    assert min(in_turn(Patience(PATIENCE_S), "slow", "slow", "slow")) >= PATIENCE_S


def test_a_newcomer_that_leaves_with_strips_makes_newcomers_pause_ever_longer() -> None:
    patience, now = Patience(PATIENCE_S), 0.0

    def pause() -> float:
        nonlocal now
        began = now
        while patience.must_pause("new", ["new", "honest"]):
            assert not patience.must_pause("honest", ["new", "honest"])
            patience.check(0, {}, now := now + CHECK_EVERY_S)
        return now - began

    patience.reported("honest")
    patience.deserted("honest")
    assert pause() == 0
    patience.check(0, {}, now)
    found = []
    for number in range(3):
        patience.deserted(f"churn{number}")
        found.append(pause())
    assert found == [PATIENCE_S / 4, PATIENCE_S / 2, PATIENCE_S]
    for number in range(3):
        patience.reported(f"good{number}")
    patience.deserted("churn")
    assert pause() == PATIENCE_S / 4


def test_who_has_never_reported_a_strip_pauses_as_long_as_any_worker() -> None:
    patience = Patience(PATIENCE_S)
    patience.reported("honest")
    all_three = ["hoarder", "new", "honest"]
    assert not any(patience.must_pause(name, all_three) for name in all_three)
    in_turn(patience, "hoarder")
    assert [patience.must_pause(name, all_three) for name in all_three] == [True, True, False]
    assert [patience.must_pause(name, all_three[:2]) for name in all_three[:2]] == [True, False]
    assert not patience.must_pause("hoarder", ["hoarder"])
    for second in range(100, 100 + 2 * int(PATIENCE_S)):
        patience.check(0, {}, float(second))
    assert not any(patience.must_pause(name, all_three) for name in all_three)
