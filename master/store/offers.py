"""The index of what may be claimed, and how it is kept in step with the runs.

For each task and scope with a ready run there is one row: in `offers` while the task is open, in `withdrawn` once an
agent met it while the task was closed. So a claim meets nothing that cannot run, and each withdrawal is paid for once.
Scopes: `a:AGENT` for addressed runs, `q:QUEUE` for runs anybody may take, `s:HASH` for a set of candidates; a set's
members are looked up by agent, and stand there only while the set has rows. Each member has a place before which the
set holds nothing for it: raised by the claim that finds it so, lowered by whoever offers something before it.
"""

from __future__ import annotations

import hashlib
import sqlite3
from collections.abc import Collection, Iterable

import msgspec

from common.model import Offer, Run, RunState
from master.store import rows, statements
from master.store.passed import FIRST, NOWHERE, Passed, Place, Spans
from master.store.reads import Tx

_PAGE_MOST = 1024
_SETS_PAGE = 8


def _place(row: rows.Row) -> Place:
    return (row[1], row[2])


def _filled(found: list[rows.Row], limit: int, *, before: Place) -> bool:
    """Whether `limit` offers are found that all come before a place; what is too much goes."""
    if len(found) < limit:
        return False
    found.sort(key=_place)
    del found[limit:]
    return before > _place(found[-1])


def set_scope(queue: str, candidates: Iterable[str]) -> str:
    """The scope of a candidate set: equal sets of one queue share it."""
    digest = hashlib.sha256(msgspec.msgpack.encode([queue, sorted(candidates)]))
    return f"s:{digest.hexdigest()[:32]}"


class OfferReads(Tx):
    """What an agent may take."""

    __slots__ = ()

    def _seq_and_scope(self, task_id: str) -> tuple[int, str | None] | None:
        found: tuple[int, str | None] | None = self.one("SELECT seq, scope FROM tasks WHERE id = ?", task_id)
        return found

    def heads(self, agent_id: str, queues: Collection[str] | None, *, limit: int) -> list[Offer]:
        """See `ReadTx.heads`."""
        found = self.all(statements.OFFERS_OF_SCOPE, f"a:{agent_id}", limit)
        for first, scope in sorted(self._queue_scopes(queues)):
            if _filled(found, limit, before=first):
                break
            found += self._usable(agent_id, scope, limit)
        self._add_sets(found, agent_id, queues, limit)
        found.sort(key=_place)
        return [Offer(scope=row[0], priority=row[1], seq=row[2], task_id=row[3]) for row in found[:limit]]

    def _add_sets(self, found: list[rows.Row], agent_id: str, queues: Collection[str] | None, limit: int) -> None:
        """Add the usable offers of the agent's sets, as far as these can come among the first `limit`."""
        raised: list[tuple[Place, str]] = []
        place, page = FIRST, _SETS_PAGE
        while page == _SETS_PAGE:
            sets = self.all(statements.SETS_OF_AGENT, agent_id, *place, _SETS_PAGE)
            page = len(sets)
            for scope, priority, seq, queue in sets:
                place = (priority, seq)
                if _filled(found, limit, before=place):
                    page = 0
                    break
                if queues is None or queue in queues:
                    some = self._usable(agent_id, scope, limit)
                    found += some
                    head = _place(some[0]) if some else NOWHERE
                    if head != place:
                        raised.append((head, scope))
        self._raise_sets(agent_id, raised)

    def _raise_sets(self, agent_id: str, raised: list[tuple[Place, str]]) -> None:
        """Remember where these sets begin for the agent; a snapshot cannot."""

    def _queue_scopes(self, queues: Collection[str] | None) -> list[tuple[Place, str]]:
        """The queues, each with a place that nothing in it comes before."""
        if queues is not None:
            return [(FIRST, f"q:{queue}") for queue in set(queues)]
        scopes = []
        # Each step looks up the next scope that has something, however many offers the last one has.
        row = self.one(statements.NEXT_QUEUE_HEAD, "q:")
        while row is not None:
            scopes.append(((row[1], row[2]), row[0]))
            row = self.one(statements.NEXT_QUEUE_HEAD, row[0])
        return scopes

    def _usable(self, agent_id: str, scope: str, limit: int) -> list[rows.Row]:
        """The first offers of a shared scope whose task the agent has no run of yet."""
        spans = self._spans(scope, agent_id)
        found: list[rows.Row] = []
        begin = after = FIRST if spans is None else spans.skip(FIRST)
        many = limit
        while True:
            page = self.all(statements.OFFERS_WITH_MINE, agent_id, scope, *after, many)
            for row in page:
                place = (row[1], row[2])
                known = None if spans is None else spans.holds(place)
                if known is not None:
                    after = known
                    break
                if not row[4]:
                    self._pass_over(scope, agent_id, begin, after)
                    begin = place
                    found.append(row)
                    if len(found) == limit:
                        return found
                after = place
            else:
                if len(page) < many:
                    self._pass_over(scope, agent_id, begin, after)
                    return found
                many = min(2 * many, _PAGE_MOST)

    def _spans(self, scope: str, agent_id: str) -> Spans | None:
        """What is known of offers that this agent passes over; a snapshot knows nothing and looks at each."""
        return None

    def _pass_over(self, scope: str, agent_id: str, after: Place, end: Place) -> None:
        """Nothing in (after, end] of the scope is left for the agent."""

    def claimable(self, task_id: str, agent_id: str) -> Run | None:
        """See `ReadTx.claimable`."""
        known = self._seq_and_scope(task_id)
        if known is None:
            return None
        seq, scope = known
        own = self.all(statements.RUNS_OF_AGENT_IN_TASK, agent_id, seq)
        for row in own:
            run = self.run_of(row)
            if run.addressed and run.state is RunState.READY:
                return run
        if own or scope is None:
            return None
        if scope.startswith("s:") and self.one(statements.IS_MEMBER, agent_id, scope) is None:
            return None
        row = self.one(statements.FREE_RUN, seq)
        return None if row is None else self.run_of(row)

    def task_candidates(self, task_id: str) -> list[str] | None:
        """See `ReadTx.task_candidates`."""
        known = self._seq_and_scope(task_id)
        if known is None or known[1] is None or not known[1].startswith("s:"):
            return None
        row = self.one(statements.GET_SET, known[1])
        return None if row is None else msgspec.msgpack.decode(row[1], type=list[str])


class OfferWrites(OfferReads):
    """The index, to be changed."""

    __slots__ = ("_found", "_passed", "_seen")

    def __init__(self, db: sqlite3.Connection, passed: Passed) -> None:
        super().__init__(db)
        self._passed = passed
        # Spans found by this transaction: they count for it at once, for others when it went well.
        self._found: list[tuple[str, str, Place, Place]] = []
        self._seen: dict[tuple[str, str], Spans] = {}

    def _spans(self, scope: str, agent_id: str) -> Spans | None:
        return self._seen.get((scope, agent_id)) or self._passed.of(scope, agent_id)

    def _pass_over(self, scope: str, agent_id: str, after: Place, end: Place) -> None:
        if after < end:
            self._found.append((scope, agent_id, after, end))
            spans = self._seen[scope, agent_id] = Spans(self._spans(scope, agent_id))
            spans.add(after, end)

    def keep_spans(self) -> None:
        """The transaction went well."""
        for span in self._found:
            self._passed.add(*span)

    def _raise_sets(self, agent_id: str, raised: list[tuple[Place, str]]) -> None:
        self.db.executemany(statements.RAISE_SET, [(*place, agent_id, scope) for place, scope in raised])

    def _offered(self, scope: str, place: Place) -> None:
        self._passed.offered(scope, place)
        if scope.startswith("s:"):
            self.db.execute(statements.LOWER_SET, (*place, scope, *place))
        if self._found:
            self._found = [span for span in self._found if span[0] != scope]
            self._seen = {key: spans for key, spans in self._seen.items() if key[0] != scope}

    def given_back(self, before: Run, *, scope: str) -> None:
        """A run anybody may take has left its agent, who may take one of the task again."""
        if before.agent_id is not None:
            place = (before.priority, before.seq)
            self._passed.offered_again(scope, before.agent_id, place)
            if scope.startswith("s:"):
                self.db.execute(statements.LOWER_SET_FOR, (*place, before.agent_id, scope, *place))
            self._found = [span for span in self._found if span[:2] != (scope, before.agent_id)]
            self._seen.pop((scope, before.agent_id), None)

    def withdraw(self, offer: Offer) -> None:
        """See `WriteTx.withdraw`; an offer that is gone already changes nothing."""
        if self.db.execute(statements.DROP_OFFER, (offer.scope, offer.priority, offer.seq)).rowcount:
            self.db.execute(statements.ADD_WITHDRAWN, (offer.seq, offer.scope))

    def reoffer(self, task_id: str) -> list[str]:
        """See `WriteTx.reoffer`."""
        known = self._seq_and_scope(task_id)
        if known is None:
            return []
        scopes = [row[0] for row in self.all(statements.WITHDRAWN_SCOPES, known[0])]
        if scopes:
            self.db.execute(statements.REOFFER, (known[0],))
            self.db.execute(statements.CLEAR_WITHDRAWN, (known[0],))
        seq, scope = known
        if scope is not None and scope in scopes:
            priority = self.all("SELECT priority FROM tasks WHERE seq = ?", seq)[0][0]
            self._offered(scope, (priority, seq))
        return scopes

    def add_set(self, scope: str, queue: str, candidates: Iterable[str]) -> None:
        """Remember what a set's scope stands for."""
        members = msgspec.msgpack.encode(sorted(candidates))
        self.db.execute(statements.ADD_SET, (scope, queue, members, 0))

    def add_offers(self, runs: Iterable[Run], *, task_id: str, scope: str | None, offered: bool) -> None:
        """Offer the ready ones of a new task's runs, each scope once."""
        scopes: dict[str, Run] = {}
        for run in runs:
            if run.state is RunState.READY:
                scopes.setdefault(_scope_of(run, scope), run)
        if offered:
            self.db.executemany(
                statements.ADD_OFFER, [(name, run.priority, run.seq, task_id) for name, run in scopes.items()]
            )
        else:
            self.db.executemany(statements.ADD_WITHDRAWN, [(run.seq, name) for name, run in scopes.items()])
        if scope is not None and scope in scopes:
            place = (scopes[scope].priority, scopes[scope].seq)
            self._count_set(scope, +1, place)
            self._offered(scope, place)

    def make_offer(self, run: Run, *, scope: str | None, offered: bool) -> None:
        """A run has become ready."""
        name = _scope_of(run, scope)
        place = (name, run.priority, run.seq)
        if offered:
            # A free run's scope may have been withdrawn on account of another run of the task.
            moved = not run.addressed and self._drop_withdrawn(run.seq, name)
            new = self.db.execute(statements.ADD_OFFER, (*place, run.task_id)).rowcount and not moved
            if not run.addressed:
                self._offered(name, (run.priority, run.seq))
        elif not run.addressed and self.one(statements.HAS_OFFER, *place) is not None:
            new = False
        else:
            new = bool(self.db.execute(statements.ADD_WITHDRAWN, (run.seq, name)).rowcount)
        if new and not run.addressed:
            self._count_set(name, +1, (run.priority, run.seq))

    def take_offer(self, run: Run, *, scope: str | None) -> None:
        """A run, as it was stored while ready, has left that state; the new one is stored already."""
        name = _scope_of(run, scope)
        if not run.addressed and self.one(statements.ANY_FREE_RUN, run.seq) is not None:
            return
        gone = self.db.execute(statements.DROP_OFFER, (name, run.priority, run.seq)).rowcount
        gone = gone or self._drop_withdrawn(run.seq, name)
        if gone and not run.addressed:
            self._count_set(name, -1, (run.priority, run.seq))

    def _drop_withdrawn(self, seq: int, scope: str) -> bool:
        return self.db.execute(statements.DROP_WITHDRAWN, (seq, scope)).rowcount > 0

    def _count_set(self, scope: str, change: int, place: Place) -> None:
        if not scope.startswith("s:"):
            return
        queue, members, waiting = self.all(statements.GET_SET, scope)[0]
        self.db.execute(statements.SET_WAITING, (waiting + change, scope))
        if waiting == 0:
            names = msgspec.msgpack.decode(members, type=list[str])
            self.db.executemany(statements.ADD_MEMBER, [(name, scope, queue, *place) for name in names])
        elif waiting + change == 0:
            self.db.execute(statements.DROP_MEMBERS, (scope,))
            self._passed.forget_scope(scope)


def _scope_of(run: Run, scope: str | None) -> str:
    if run.addressed:
        return f"a:{run.agent_id}"
    if scope is None:
        raise ValueError(f"run {run.id} is addressed to nobody, and its task has no scope")
    return scope
