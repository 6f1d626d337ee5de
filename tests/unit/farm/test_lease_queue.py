"""Which boards are due to whom, on paper."""

from __future__ import annotations

from collections import defaultdict

import pytest

from toolchain.farm.grants import Client
from toolchain.farm.lease_queue import AssignableBoard, LeaseRequest, allocate


def ask(*, kind="rpi4", names=(), limit=0, has=(), shares=True, patient=True) -> LeaseRequest:
    request = LeaseRequest(Client("me"), kind, tuple(names), limit, shares, patient)
    request.served = bool(has)
    request.boards = list(has)
    return request


def dealt(asks, free=(), kinds=None) -> list[str]:
    """Return what each is due, as a string of the letters of its boards."""
    holders = {name: request for request in asks for name in request.boards if request.shares}
    boards = {
        name: AssignableBoard((kinds or {}).get(name, "rpi4"), holders.get(name)) for name in sorted({*free, *holders})
    }
    due = defaultdict(str)
    for name, request in sorted(allocate(asks, boards).items()):
        due[request] += name
    return [due[request] for request in asks]


@pytest.mark.parametrize(
    ("asks", "free", "expected"),
    [
        ([ask()], "abcd", ["abcd"]),
        ([ask(limit=2)], "abcd", ["ab"]),
        ([ask(has="abcd"), ask()], "", ["ab", "cd"]),
        ([ask(has="ab"), ask(has="cd")], "", ["ab", "cd"]),
        ([ask(has="abc"), ask()], "", ["ab", "c"]),
        ([ask(has="a"), ask()], "", ["a", ""]),
        ([ask(has="ab"), ask(), ask()], "", ["a", "b", ""]),
        ([ask(has="abcd"), ask(limit=1)], "", ["abc", "d"]),
        ([ask(has="ab", limit=2), ask(has="c")], "de", ["ab", "cde"]),
        ([ask(), ask(has="a")], "", ["", "a"]),
        ([ask(has="ab"), ask(kind="", names="a")], "", ["b", "a"]),
        ([ask(has="a"), ask(kind="", names="a")], "", ["a", ""]),
        ([ask(has="abc"), ask(kind="", names="xa")], "", ["abc", ""]),
        ([ask(), ask(kind="", names="a")], "a", ["a", ""]),
        ([ask(has="ab", shares=False), ask()], "", ["", ""]),
        ([ask(has="abc"), ask(patient=False)], "", ["abc", ""]),
        ([ask(has="abc"), ask(patient=False, names="a")], "", ["abc", ""]),
        ([ask(has="abc"), ask(patient=False)], "d", ["abc", "d"]),
        ([ask(has="a", patient=False), ask(has="bcd")], "", ["ad", "bc"]),
        ([ask(has="a", shares=False), ask(shares=False), ask()], "bcd", ["", "bd", "c"]),
    ],
    ids=range(20),  # an ask has a time in it, and each process of a run would call its test otherwise
)
def test_shares(asks, free, expected):
    assert dealt(asks, free) == expected


def test_nobody_gets_a_board_of_another_type_or_one_that_was_refused():
    first, second = ask(), ask(kind="pynq")
    first.refused.add("b")
    assert dealt([first, second], "abc", {"c": "pynq"}) == ["a", "c"]


def test_what_is_dealt_stays_dealt():
    """Once everybody has what is due to them, nobody is asked to give anything back."""
    for number in range(1, 9):
        asks = [ask(has="abcdefghij"), *[ask() for _ in range(number)]]
        shares = dealt(asks)
        assert sorted("".join(shares)) == list("abcdefghij")
        assert max(map(len, shares)) - min(map(len, shares)) <= 1
        again = [ask(has=some) for some in shares]
        assert dealt(again) == shares
