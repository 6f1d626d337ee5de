import pytest

from toolchain.tuning.plan import UNDISTURBED, Pace, pace_for


@pytest.mark.parametrize(
    ("boards", "trials_each", "pace"),
    [
        (1, 1000, Pace(16, 16)),
        (8, 1000, Pace(32, 32)),
        (32, 1000, Pace(128, 128)),
        (100, 1000, Pace(128, 400)),
        (100, 40, Pace(20, 400)),
        (100, 1, Pace(16, 400)),
    ],
)
def test_what_is_on_its_way_grows_with_the_boards(boards, trials_each, pace):
    assert pace_for(boards, trials_each) == pace


def test_few_trials_reach_every_task_whatever_the_pace():
    assert [pace.first_batch for pace in (UNDISTURBED, Pace(), pace_for(100, 1000))] == [8, 8, 8]


def test_nothing_is_on_its_way_while_this_machine_measures():
    assert UNDISTURBED.ahead == 0
