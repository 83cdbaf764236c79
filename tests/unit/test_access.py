"""Who may use it: login links are good once, sessions end, tokens have names, and the store hears of uses rarely."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gevent
import pytest

from common.auth import token_hash
from common.config import Settings
from common.errors import Conflict, Forbidden, InvalidRequest, LoginRefused, NotFound, RateLimited, Unauthorized
from master.access import SAVE_EVERY_S, AccessLoop
from master.store.base import Store
from tests.support.fake_agent import MasterHere, master_here

WEEK_S = 604_800.0
HERE = ("192.0.2.1", "Firefox on Linux")


@pytest.fixture
def here(tmp_path: Path) -> Iterator[MasterHere]:
    with master_here(tmp_path / "m", manual=True) as here:
        yield here


def link(here: MasterHere, name: str = "ann") -> str:
    secret: str = here.web("add_login_link", name, "admin")["secret"]
    return secret


def session(here: MasterHere, name: str = "ann") -> str:
    """The hash of a new session's secret."""
    return token_hash(here.web("log_in", link(here, name), *HERE)["session"])


def listed(here: MasterHere, kind: str = "session") -> list[dict[str, Any]]:
    return [item for item in here.web("list_tokens")["items"] if item["kind"] == kind]


def commits(here: MasterHere) -> int:
    store: Store = here.master.store
    number: int = store.stats()["commits"]
    return number


def advance(here: MasterHere, seconds: float) -> None:
    assert here.clock is not None
    here.clock.advance(seconds)


def round_of(here: MasterHere) -> None:
    """What the loop does when its time has come."""
    AccessLoop(here.master.access, here.master.ledger, clock=here.master.clock).step(0.0)


def admin_hash(here: MasterHere) -> str:
    return token_hash((here.data_dir / "admin.token").read_text().strip())


# -- links -------------------------------------------------------------------------------------------------------------


def test_a_link_makes_one_session(here: MasterHere) -> None:
    secret = link(here)
    made = here.web("log_in", secret, *HERE)
    assert made["name"] == "ann"
    found = here.web("check_session", token_hash(made["session"]))
    assert found == {"name": "ann", "role": "admin", "id": made["id"]}
    with pytest.raises(LoginRefused, match=r"used already: make a fresh one with `muster login`"):
        here.web("log_in", secret, *HERE)
    assert len(listed(here)) == 1


def test_many_who_use_a_link_at_once_make_one_session(here: MasterHere) -> None:
    secret = link(here)

    def attempt(number: int) -> bool:
        try:
            here.master.access.log_in(secret, f"192.0.2.{number}", "")
        except LoginRefused:
            return False
        return True

    tries = [gevent.spawn(attempt, number) for number in range(20)]
    assert sum(each.get() for each in tries) == 1
    assert len(listed(here)) == 1


def test_a_link_expires_and_one_that_was_never_made_is_unknown(here: MasterHere) -> None:
    secret = link(here)
    advance(here, 599.0)
    other = link(here)
    advance(here, 2.0)
    with pytest.raises(Forbidden, match="has expired"):
        here.web("log_in", secret, *HERE)
    with pytest.raises(Forbidden, match="not known here"):
        here.web("log_in", "guess", *HERE)
    assert here.web("log_in", other, *HERE)["name"] == "ann"


def test_failed_logins_are_limited_by_address(tmp_path: Path) -> None:
    with master_here(tmp_path / "m", manual=True, settings=Settings(login_rate=3)) as here:
        for _ in range(3):
            with pytest.raises(LoginRefused):
                here.web("log_in", "guess", *HERE)
        with pytest.raises(RateLimited, match="Too many tries to log in have failed"):
            here.web("log_in", "guess", *HERE)
        for _ in range(5):  # a good link is let in whatever others try, and counts for nothing
            assert here.web("log_in", link(here), *HERE)["name"] == "ann"
        used = link(here)
        here.web("log_in", used, *HERE)
        with pytest.raises(RateLimited):
            here.web("log_in", used, *HERE)
        advance(here, 21.0)
        with pytest.raises(LoginRefused):
            here.web("log_in", "guess", *HERE)


@pytest.mark.parametrize("name", ["", "  ", "a\nb", "x" * 101, "a\u202eb"])
def test_a_name_is_short_and_printable(here: MasterHere, name: str) -> None:
    for method in ("add_login_link", "add_token"):
        with pytest.raises(InvalidRequest, match="name"):
            here.web(method, name)


# -- sessions ----------------------------------------------------------------------------------------------------------


def test_a_session_ends_a_week_after_its_last_use_over_restarts_too(here: MasterHere) -> None:
    used, idle = session(here), session(here)
    for _ in range(3):
        advance(here, WEEK_S / 2)
        here.web("check_session", used)
        round_of(here)
        here.restart()
    with pytest.raises(Unauthorized):
        here.web("check_session", idle)
    assert here.web("check_session", used)["name"] == "ann"
    advance(here, WEEK_S + 1)
    with pytest.raises(Unauthorized):
        here.web("check_session", used)


def test_what_has_expired_is_removed(here: MasterHere) -> None:
    session(here), link(here)
    advance(here, WEEK_S + 1)
    assert listed(here) == []
    round_of(here)
    assert [token.name for token in here.master.ledger.read(lambda tx: tx.list_tokens())] == ["admin"]
    assert here.master.ledger.read(lambda tx: tx.login_links_before(1e12)) is False
    before = commits(here)
    round_of(here)
    assert commits(here) == before


def test_logging_out_ends_one_session(here: MasterHere) -> None:
    gone, stays = session(here), session(here)
    assert here.web("log_out", gone) is True
    with pytest.raises(Unauthorized):
        here.web("check_session", gone)
    assert here.web("log_out", gone) is False
    assert here.web("log_out", admin_hash(here)) is False
    here.restart()
    with pytest.raises(Unauthorized):
        here.web("check_session", gone)
    assert here.web("check_session", stays)["name"] == "ann"


def test_a_session_is_no_token_and_a_token_no_session(here: MasterHere) -> None:
    with pytest.raises(Unauthorized):
        here.web("check_token", session(here))
    with pytest.raises(Unauthorized):
        here.web("check_session", admin_hash(here))


def test_a_session_says_where_it_was_made(here: MasterHere) -> None:
    for about, told in (
        ("Firefox\x1b[2J on Linux", "Firefox[2J on Linux, 192.0.2.1"),
        ("", "192.0.2.1"),
        ("x" * 300, "x" * 189 + ", 192.0.2.1"),
        ("curl from 192.0.2.1", "curl from 192.0.2.1"),
    ):
        here.web("log_in", link(here), "192.0.2.1", about)
        assert listed(here)[0]["about"] == told


# -- last use ----------------------------------------------------------------------------------------------------------


def test_the_store_hears_of_uses_once_a_minute(here: MasterHere) -> None:
    sha256, before = admin_hash(here), commits(here)
    for _ in range(50):
        here.web("check_token", sha256)
        round_of(here)
    assert commits(here) == before + 1
    advance(here, SAVE_EVERY_S / 2)
    here.web("check_token", sha256)
    round_of(here)
    assert commits(here) == before + 1
    shown = listed(here, "api")[0]["last_used_at_ms"]
    assert shown == here.master.clock.wall_ms()
    advance(here, SAVE_EVERY_S)
    round_of(here)
    round_of(here)
    assert commits(here) == before + 2
    here.restart()
    assert listed(here, "api")[0]["last_used_at_ms"] == shown


# -- tokens ------------------------------------------------------------------------------------------------------------


def test_a_token_works_until_it_is_revoked(here: MasterHere) -> None:
    made = here.web("add_token", " ci ", "ann")
    assert (made["name"], made["kind"], made["role"], made["last_used_at_ms"]) == ("ci", "api", "admin", None)
    assert made["expires_at_ms"] is None
    sha256 = token_hash(made["token"])
    here.restart()
    assert here.web("check_token", sha256)["name"] == "ci"
    assert here.web("revoke_token", made["id"], "ann") is True
    here.restart()
    with pytest.raises(Unauthorized):
        here.web("check_token", sha256)
    with pytest.raises(NotFound, match="muster tokens"):
        here.web("revoke_token", made["id"])
    assert here.web("add_token", "ci")["name"] == "ci"


def test_names_of_tokens_are_unique_and_admin_is_taken(here: MasterHere) -> None:
    here.web("add_token", "ci")
    session(here, "ci")
    with pytest.raises(Conflict, match="'ci' exists already"):
        here.web("add_token", "ci")
    with pytest.raises(Conflict, match=r"admin\.token"):
        here.web("add_token", "admin")


def test_there_are_so_many_tokens_at_most(here: MasterHere, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("master.access.TOKENS_MOST", 3)  # that of the file is one of them
    made = [here.web("add_token", name) for name in ("ci", "cd")]
    with pytest.raises(Conflict, match="revoke those that nobody uses"):
        here.web("add_token", "one more")
    here.web("revoke_token", made[0]["id"])
    here.web("add_token", "one more")


def test_join_tokens_that_were_never_used_are_removed_a_day_after_their_end(here: MasterHere) -> None:
    here.web("add_agent_token"), here.web("add_agent_token")
    read = here.master.ledger.read
    advance(here, 86400 + 86400 - 10)
    round_of(here)
    assert read(lambda tx: tx.join_tokens_before(1e12)) is True
    advance(here, 20)
    round_of(here)
    assert read(lambda tx: tx.join_tokens_before(1e12)) is False


def test_the_files_token_is_revoked_by_removing_the_file(here: MasterHere) -> None:
    (admin,) = listed(here, "api")
    with pytest.raises(Conflict, match="remove the file and restart the master"):
        here.web("revoke_token", admin["id"])
    assert here.web("check_token", admin_hash(here))["name"] == "admin"


def test_a_session_called_admin_is_revoked_like_any_other(here: MasterHere) -> None:
    sha256 = session(here, "admin")
    here.restart()
    (mine,) = listed(here)
    assert here.web("check_session", sha256)["name"] == "admin"
    here.web("revoke_token", mine["id"])
    with pytest.raises(Unauthorized):
        here.web("check_session", sha256)


def test_an_id_may_be_shortened_while_it_is_clear(here: MasterHere) -> None:
    made = [here.web("add_token", f"t{number}") for number in range(2)]
    with pytest.raises(Conflict, match="beginning of 3 ids"):
        here.web("revoke_token", made[0]["id"][:6])
    with pytest.raises(NotFound):
        here.web("revoke_token", made[0]["id"][:5])
    here.web("revoke_token", made[0]["id"][:-1])
    assert [item["name"] for item in listed(here, "api")] == ["t1", "admin"]


def test_the_log_names_who_and_never_a_secret(here: MasterHere, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    secret = link(here)
    made = here.web("log_in", secret, *HERE)
    here.web("log_out", token_hash(made["session"]))
    token = here.web("add_token", "ci", "ann")
    here.web("revoke_token", token["id"], "ann")
    lines = [record for record in caplog.records if record.name == "master.access"]
    told = [(record.getMessage(), record.__dict__["muster_fields"]["name"]) for record in lines]
    assert told == [
        ("login link made", "ann"),
        ("logged in", "ann"),
        ("logged out", "ann"),
        ("token added", "ci"),
        ("token revoked", "ci"),
    ]
    assert [record.__dict__["muster_fields"].get("by") for record in lines] == ["admin", None, None, "ann", "ann"]
    everything = "".join(str(record.__dict__) for record in caplog.records)
    for word in (secret, made["session"], token["token"]):
        assert word not in everything and token_hash(word) not in everything
