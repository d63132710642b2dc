"""How many guesses are worth their cost."""

from __future__ import annotations

import pytest

from agentkit.engine.speculation.pace import PROBE_EVERY, Kind, Pace, StepCosts


def costs(table: dict[int, float]) -> StepCosts:
    out = StepCosts()
    for tokens, seconds in table.items():
        out.record(tokens, seconds)
    return out


FLAT = {1: 1.0, 16: 1.05}  # a GPU: tokens more cost next to nothing
STEEP = {1: 1.0, 2: 1.9, 16: 14.0}


def test_between_measured_sizes_costs_are_on_the_line() -> None:
    measured = costs({1: 1.0, 5: 3.0})
    assert measured.extra(2) == pytest.approx(1.0, rel=0.2)
    assert measured.extra(4) == pytest.approx(2.0, rel=0.2)
    assert measured.extra(2, base=3) == pytest.approx(1.0, rel=0.2)
    assert costs({4: 1.0, 1: 2.0}).extra(3) >= 0.0  # noise: more tokens never count as cheaper


def test_a_size_that_was_timed_badly_does_not_make_the_next_ones_cheap() -> None:
    measured = StepCosts()
    for _ in range(20):
        for size in (1, 2, 4, 8, 16, 20):
            measured.record(size, 1.0 + 0.25 * size)
    measured.record(16, 8.0)
    assert 0.5 <= measured.extra(4, base=16) <= 2.0


def test_a_size_may_lie_beside_the_line() -> None:
    measured = StepCosts()
    for _ in range(40):
        for size, seconds in ((1, 1.0), (2, 1.6), (8, 2.5), (16, 4.2)):
            measured.record(size, seconds)
    assert measured.seconds(2) / measured.seconds(1) == pytest.approx(1.6, rel=0.1)
    assert measured.seconds(16) / measured.seconds(1) == pytest.approx(4.2, rel=0.1)


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


GOOD, FAIR, BAD = ("ngram", 9), ("ngram", 5), ("ngram", 1)


def told(pace: Pace, kind: Kind, held: int, wrong: int, times: int) -> Pace:
    for i in range(times * (held + wrong)):
        pace.learn(kind, i % (held + wrong) < held)
    return pace


def chain(pace: Pace, kind: Kind, most: int = 8) -> list[float]:
    return [pace.acceptance(kind) ** (i + 1) for i in range(most)]


def test_sure_guesses_are_taken_as_far_as_it_pays() -> None:
    pace = told(Pace(costs(FLAT)), GOOD, 8, 0, 50)
    assert pace.acceptance(GOOD) > 0.95
    assert pace.depth(GOOD, chain(pace, GOOD)) == 8


def test_what_a_guess_costs_decides() -> None:
    flat, steep = told(Pace(costs(FLAT)), FAIR, 4, 1, 40), told(Pace(costs(STEEP)), FAIR, 4, 1, 40)
    assert flat.depth(FAIR, chain(flat, FAIR)) >= 6
    assert steep.depth(FAIR, chain(steep, FAIR)) == 0


def test_guesses_pay_for_what_they_add_and_not_for_what_is_in_the_step_anyway() -> None:
    pace = Pace(costs({1: 1.0, 16: 4.0}))
    alone = pace.best([0.8, 0.64, 0.5, 0.4])
    assert alone[0] == 4
    assert pace.best([0.8, 0.64, 0.5, 0.4], base=6)[0] == 4  # behind a run of five that a grammar forces
    crowd = Pace(costs({1: 1.0, 16: 8.5}))  # half a forward each
    assert crowd.best([0.7])[0] == 1
    assert crowd.best([0.95], base=16, beside=16)[0] == 0  # beside others a guess spares a sixteenth of a step


def test_what_is_forced_costs_only_where_it_does_not_come_true() -> None:
    pace = Pace(costs({1: 1.0, 16: 7.0}))
    assert pace.best([0.9, 0.5])[0] == 1
    assert pace.best([0.9, 0.9, 0.9, 0.9, 0.8], [False, True, True, True, False])[0] == 5  # three that are forced lie between two good ones
    assert pace.best([0.9, 0.9, 0.9, 0.9, 0.8])[0] == 5


def test_bad_guesses_are_dropped_and_tried_again_now_and_then() -> None:
    pace = told(Pace(costs(STEEP)), BAD, 0, 1, 50)
    tried = [pace.depth(BAD, chain(pace, BAD)) for _ in range(4 * PROBE_EVERY)]
    assert sum(tried) == 4
    assert set(tried) == {0, 1}
    assert pace.acceptance(GOOD) >= 0.3  # kinds have books of their own
    told(pace, GOOD, 8, 0, 20)
    assert pace.acceptance(GOOD) > 0.9
    assert pace.acceptance(BAD) < 0.1


def test_proposers_that_cost_are_not_asked_where_nothing_pays() -> None:
    pace = Pace(costs({1: 1.0, 2: 1.2, 16: 4.0}))
    assert pace.reach(8) == 4  # nothing is known of what asking costs
    for _ in range(50):
        pace.learn(BAD, False)
        pace.asking.record(8, 0.4)
        pace.depth(BAD, chain(pace, BAD))
    asked = [pace.reach(8) for _ in range(2 * PROBE_EVERY)]
    assert sum(map(bool, asked)) == 2
    cheap = Pace(costs({1: 1.0, 16: 4.0}))
    cheap.learn(BAD, False)
    cheap.asking.record(8, 1e-5)
    assert cheap.reach(8) == 8  # another kind may come up at any time


def test_asking_that_does_not_pay_takes_about_one_percent_of_the_time() -> None:
    pace = Pace(costs({1: 1.0, 2: 1.2, 16: 4.0}))
    for _ in range(50):
        pace.learn(BAD, False)
        pace.depth(BAD, chain(pace, BAD))
        pace.asking.record(8, 12.0)  # forwards
    spent, steps = 0.0, 20_000
    for _ in range(steps):
        if asked := pace.reach(8):
            spent += pace.asking.seconds(asked)
    assert 0 < spent <= 0.011 * steps


def test_the_estimate_is_the_share_that_held() -> None:
    assert abs(told(Pace(StepCosts()), FAIR, 3, 1, 300).acceptance(FAIR) - 0.75) < 0.06


def test_chances_of_a_tree_are_added_up_and_calibrated() -> None:
    pace = Pace(costs({1: 1.0, 2: 1.3, 16: 5.5}))
    own, tree = [0.9, 0.8, 0.1, 0.05, 0.01], ("medusa", 0)

    def depth() -> int:
        return pace.depth(tree, [pace.acceptance(tree) * chance for chance in own])

    assert depth() == 2
    for _ in range(60):
        pace.calibrate(tree, 0, 1.7)  # the proposer thinks too well of itself
    assert depth() == 0
    for _ in range(200):
        pace.calibrate(tree, 2, 1.7)
    assert depth() == 2
