"""How many guesses are worth their cost."""

from __future__ import annotations

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
    assert measured.ratio(2) == 2.0
    assert measured.ratio(4) == 3.0
    assert measured.ratio(2, base=3) == 1.5
    assert costs({4: 1.0, 1: 2.0}).ratio(3) == 1.0  # noise: more tokens never count as cheaper


def test_a_timing_moves_the_estimate_and_one_outlier_does_not_ruin_it() -> None:
    measured = costs({1: 1.0})
    for _ in range(40):
        measured.record(1, 2.0)
    assert 1.9 < measured.table()[1] <= 2.0
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
    assert pace.acceptance("good") > 0.5  # kinds have books of their own


def test_the_estimate_is_the_share_of_positions_that_held() -> None:
    pace = Pace(StepCosts())
    for _ in range(300):
        pace.learn("k", 3, 8)  # three held, the fourth did not, the others were never asked
    assert abs(pace.acceptance("k") - 0.75) < 0.06
