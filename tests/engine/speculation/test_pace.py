"""How many guesses are worth their cost."""

from __future__ import annotations

import pytest

from agentkit.engine.speculation.pace import PROBE_EVERY, Pace, StepCosts


def costs(table: dict[int, float]) -> StepCosts:
    out = StepCosts()
    for tokens, seconds in table.items():
        out.record(tokens, seconds)
    return out


FLAT = {1: 1.0, 16: 1.05}  # a GPU: tokens more cost next to nothing
STEEP = {1: 1.0, 2: 1.9, 16: 14.0}


def test_between_measured_sizes_costs_are_on_the_line() -> None:
    measured = costs({1: 1.0, 5: 3.0})
    assert measured.ratio(2) == pytest.approx(2.0, rel=0.1)
    assert measured.ratio(4) == pytest.approx(3.0, rel=0.1)
    assert measured.ratio(2, base=3) == pytest.approx(1.5, rel=0.1)
    assert costs({4: 1.0, 1: 2.0}).ratio(3) == 1.0  # noise: more tokens never count as cheaper


def test_a_size_may_lie_beside_the_line() -> None:
    measured = StepCosts()
    for _ in range(40):
        for size, seconds in ((1, 1.0), (2, 1.6), (8, 2.5), (16, 4.2)):
            measured.record(size, seconds)
    assert measured.ratio(1) == pytest.approx(1.6, rel=0.1)
    assert measured.ratio(15) == pytest.approx(4.2, rel=0.1)


def test_when_the_machine_slows_down_sizes_that_were_not_seen_since_do_so_too() -> None:
    measured = costs(FLAT)
    for _ in range(60):
        measured.record(1, 10.0)
        measured.record(2, 10.1)
    assert measured.seconds(16) > 8.0


def test_a_timing_moves_the_estimate_and_one_outlier_does_not_ruin_it() -> None:
    measured = costs({1: 1.0})
    for _ in range(60):
        measured.record(1, 2.0)
    assert measured.table()[1] == pytest.approx(2.0, rel=0.05)
    measured.record(1, 1000.0)
    assert measured.table()[1] < 4.0
    measured.record(1000, 1.0)
    assert list(measured.table()) == [1]


def test_sure_guesses_are_taken_as_far_as_it_pays() -> None:
    pace = Pace(costs(FLAT))
    for _ in range(50):
        pace.learn("good", 8, 8)
    assert pace.acceptance("good") > 0.95
    assert pace.depth("good", 8) == 8


def test_what_a_guess_costs_decides() -> None:
    flat, steep = Pace(costs(FLAT)), Pace(costs(STEEP))
    for pace in (flat, steep):
        for _ in range(100):
            pace.learn("fair", 4, 8)
    assert flat.depth("fair", 8) >= 6
    assert steep.depth("fair", 8) == 0


def test_bad_guesses_are_dropped_and_tried_again_now_and_then() -> None:
    pace = Pace(costs(STEEP))
    for _ in range(50):
        pace.learn("bad", 0, 4)
    tried = [pace.depth("bad", 8) for _ in range(4 * PROBE_EVERY)]
    assert sum(tried) == 4
    assert set(tried) == {0, 1}
    assert pace.acceptance("good") >= 0.3  # kinds have books of their own
    for _ in range(20):
        pace.learn("good", 8, 8)
    assert pace.acceptance("good") > 0.9
    assert pace.acceptance("bad") < 0.1


def test_proposers_that_cost_are_not_asked_where_nothing_pays() -> None:
    pace = Pace(costs({1: 1.0, 2: 1.2, 16: 4.0}))
    assert pace.reach(8) == 4  # nothing is known of what asking costs
    for _ in range(50):
        pace.learn("bad", 0, 4)
        pace.asking.record(8, 0.4)
        pace.depth("bad", 8)
    asked = [pace.reach(8) for _ in range(2 * PROBE_EVERY)]
    assert sum(map(bool, asked)) == 2
    cheap = Pace(costs({1: 1.0, 16: 4.0}))
    cheap.learn("bad", 0, 4)
    cheap.asking.record(8, 1e-5)
    assert cheap.reach(8) == 8  # another kind may come up at any time


def test_the_estimate_is_the_share_of_positions_that_held() -> None:
    pace = Pace(StepCosts())
    for _ in range(300):
        pace.learn("k", 3, 8)  # three held, the fourth did not, the others were never asked
    assert abs(pace.acceptance("k") - 0.75) < 0.06


def test_chances_of_a_tree_are_added_up_and_calibrated() -> None:
    pace = Pace(costs({1: 1.0, 2: 1.3, 16: 5.5}))
    chances = [0.9, 0.8, 0.1, 0.05, 0.01]
    assert pace.depth("tree", 5, chances=chances) == 2
    for _ in range(60):
        pace.calibrate("tree", 0, 1.7)  # the proposer thinks too well of itself
    assert pace.depth("tree", 5, chances=chances) == 0
    for _ in range(200):
        pace.calibrate("tree", 2, 1.7)
    assert pace.depth("tree", 5, chances=chances) == 2
