import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.backoff import Backoff, full_jitter_s, spread_s


def always(value: float):
    return lambda: value


@given(attempt=st.integers(-5, 10_000), share=st.floats(0, 1, exclude_max=True))
def test_a_delay_lies_between_zero_and_the_bound(attempt: int, share: float) -> None:
    delay_s = full_jitter_s(attempt, base_s=0.2, cap_s=8.0, draw=always(share))
    assert 0 <= delay_s <= min(8.0, 0.2 * 2.0 ** min(max(attempt, 0), 60))


def test_the_bound_doubles_up_to_the_cap() -> None:
    bounds = [full_jitter_s(n, base_s=0.5, cap_s=3.0, draw=always(1.0)) for n in range(5)]
    assert bounds == [0.5, 1.0, 2.0, 3.0, 3.0]


def test_a_backoff_grows_and_starts_anew_after_a_success() -> None:
    backoff = Backoff(base_s=1, cap_s=10, floor_s=0, draw=always(0.5))
    assert [backoff.next_s() for _ in range(5)] == [0.5, 1, 2, 4, 5]
    assert backoff.attempts == 5
    backoff.reset()
    assert backoff.attempts == 0
    assert backoff.next_s() == 0.5


def test_the_unluckiest_draw_still_waits_and_the_cap_holds() -> None:
    assert Backoff(base_s=1, cap_s=10, floor_s=0.05, draw=always(0.0)).next_s() == 0.05
    late = Backoff(base_s=10, cap_s=10, floor_s=0.05, draw=always(0.999_999))
    assert late.next_s() <= 10


def test_many_peers_do_not_come_back_in_one_wave() -> None:
    seconds = sorted(full_jitter_s(5, base_s=0.2, cap_s=8.0) for _ in range(4_000))
    fullest = max(sum(1 for s in seconds if slot <= s < slot + 0.64) for slot in (n * 0.64 for n in range(10)))
    assert fullest < 4_000 * 0.16  # a tenth of the time holds about a tenth of them


@given(share=st.floats(0, 1))
def test_a_spread_wait_stays_in_its_range(share: float) -> None:
    assert 45 <= spread_s(60, by=0.25, draw=always(share)) <= 75


@pytest.mark.parametrize("wrong", [{"base_s": 0}, {"base_s": 2, "cap_s": 1}, {"floor_s": -1}])
def test_settings_that_make_no_sense_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="back-off"):
        Backoff(**wrong)
