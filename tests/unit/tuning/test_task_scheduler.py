import math

from toolchain.tuning.task_state import Progress, pick


def test_each_task_gets_its_first_round_in_order():
    assert pick([Progress(1, 16, (1.0,)), Progress(1, 0, ()), Progress(9, 0, ())]) == 1


def test_the_heavier_of_two_like_tasks_is_next():
    assert pick([Progress(1, 16, (1.0,)), Progress(3, 16, (1.0,))]) == 1


def test_a_task_that_does_not_improve_falls_behind():
    stuck = Progress(1, 96, (1.0,) * 6)
    falling = Progress(1, 96, (1.5, 1.4, 1.3, 1.2, 1.1, 1.0))
    assert pick([stuck, falling]) == 1


def test_rounds_without_a_gain_lower_the_priority():
    assert pick([Progress(1, 160, (1.0,) * 10), Progress(1, 16, (0.5,))]) == 1


def test_a_task_where_nothing_works_waits_for_the_others():
    broken = Progress(100, 32, (math.inf, math.inf))
    assert pick([broken, Progress(1, 16, (1e-6,))]) == 1
    assert pick([broken, Progress(1, 16, (1e-6,), done=True)]) == 0


def test_like_tasks_are_taken_in_order():
    assert pick([Progress(1, 16, (1.0,)), Progress(1, 16, (1.0,))]) == 0


def test_nothing_is_left():
    assert pick([Progress(1, 16, (1.0,), done=True)]) is None
    assert pick([]) is None


def test_tasks_take_turns_while_their_rounds_are_under_way():
    assert pick([Progress(1, 16, (1.0,), pending=1), Progress(1, 16, (1.0,))]) == 1
    assert pick([Progress(1, 32, (), pending=2), Progress(1, 16, (), pending=1)]) == 1
