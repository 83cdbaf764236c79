"""How often something may fail: a bucket for each address and one for all of them.

Pure memory, in engine seconds. A try is charged before it is made, so that many at once are bounded, too, and what
succeeds is given back: an attacker uses up the bucket of its own address, a rollout of a thousand hosts none.
"""

from __future__ import annotations

from common.errors import RateLimited

_ADDRESSES_MOST = 10_000
ALL = 10
"""The bucket of all addresses holds so many times what that of one holds."""


class _Bucket:
    """Holds up to `most`, and is full again after a minute."""

    __slots__ = ("_at_s", "left", "most")

    def __init__(self, most: float, now_s: float) -> None:
        self.most = most
        self.left = most
        self._at_s = now_s

    def fill(self, now_s: float) -> None:
        self.left = min(self.most, self.left + max(0.0, now_s - self._at_s) * self.most / 60)
        self._at_s = now_s


class Rates:
    """Tries that may fail: `per_minute` from one address, ten times as many from all together. `what` was tried."""

    def __init__(self, per_minute: float, *, what: str = "enrol") -> None:
        self._what = what
        self._per_minute = per_minute
        self._all: _Bucket | None = None
        self._by_address: dict[str, _Bucket] = {}

    def charge(self, address: str, *, now_s: float) -> None:
        """Count a try. Raises `RateLimited` when there are too many."""
        every = self._all = self._all or _Bucket(ALL * self._per_minute, now_s)
        own = self._by_address.get(address)
        if own is None:
            if len(self._by_address) >= _ADDRESSES_MOST:
                self._by_address.clear()  # from so many addresses, the bucket of all is what bounds
            own = self._by_address[address] = _Bucket(self._per_minute, now_s)
        for bucket in (own, every):
            bucket.fill(now_s)
        if own.left < 1 or every.left < 1:
            raise RateLimited(f"Too many tries to {self._what} have failed: try again in a minute.")
        own.left -= 1
        every.left -= 1

    def refund(self, address: str) -> None:
        """The try succeeded."""
        for bucket in (self._by_address.get(address), self._all):
            if bucket is not None:
                bucket.left = min(bucket.most, bucket.left + 1)
