"""Spans of a scope's order against a plain set of the places in which nothing is left."""

from __future__ import annotations

import hypothesis.strategies as st
from hypothesis import given

from master.store.passed import FIRST, Passed, Place, Spans

ALL = [(priority, seq) for priority in range(3) for seq in range(8)]
places = st.sampled_from(ALL)
changes = st.lists(st.tuples(st.sampled_from(["add", "add", "split"]), places | st.just(FIRST), places), max_size=20)


@given(changes=changes)
def test_spans_hold_what_was_added_and_not_split(changes: list[tuple[str, Place, Place]]) -> None:
    spans = Spans()
    empty: set[Place] = set()
    for kind, first, second in changes:
        if kind == "add" and first < second:
            spans.add(first, second)
            empty |= {place for place in ALL if first < place <= second}
        elif kind == "split":
            spans.split(second)
            empty.discard(second)
        for place in ALL:
            assert (spans.holds(place) is not None) == (place in empty)
        for start in [FIRST, *ALL]:
            # Between here and where the span sends us there is nothing, and the very next place is worth a look.
            end = spans.skip(start)
            assert all(place in empty for place in ALL if start < place <= end)
            behind = [place for place in ALL if place > end]
            assert not behind or behind[0] not in empty or spans.holds(behind[0]) is not None


@given(changes=changes)
def test_a_copy_lives_for_itself(changes: list[tuple[str, Place, Place]]) -> None:
    spans = Spans()
    spans.add(FIRST, ALL[-1])
    copy = Spans(spans)
    for _, _, place in changes:
        copy.split(place)
    assert all(spans.holds(place) == ALL[-1] for place in ALL)


def test_an_offer_counts_for_every_agent_a_return_for_one() -> None:
    passed = Passed()
    for agent in ("a", "b"):
        passed.add("q:x", agent, FIRST, (5, 9))
    passed.offered_again("q:x", "a", (5, 3))
    assert [passed.of("q:x", agent).holds((5, 3)) for agent in ("a", "b")] == [None, (5, 9)]
    passed.offered("q:x", (5, 4))
    passed.offered("q:y", (5, 4))
    assert [passed.of("q:x", agent).holds((5, 4)) for agent in ("a", "b")] == [None, None]
    passed.forget_scope("q:x")
    assert passed.of("q:x", "a") is None
    passed.offered("q:x", (5, 4))
