import pytest

from common.auth import token_hash
from common.clock import ManualClock
from common.errors import Forbidden, LoginExpired, LoginRefused, LoginUsed, PeerUnreachable, Unauthorized
from common.model import Role
from webserver.master_client import MasterClient
from webserver.problems import BadHost
from webserver.security import REMEMBER_S, AllowedHosts, Caller, SessionCheck, TokenCheck, require_admin


class Door:
    """The methods that tokens and sessions need."""

    connected = True

    def __init__(self) -> None:
        self.tokens = {token_hash("good"): {"name": "ci", "role": "admin"}}
        self.sessions = {token_hash("cookie"): {"name": "ann", "role": "admin", "id": "s1"}}
        self.asked = 0
        self.away = False

    def call(self, method: str, *args: object, timeout_s: float, request_id: str | None = None) -> object:
        if method == "log_out":
            return self.sessions.pop(str(args[0]), None) is not None
        self.asked += 1
        if self.away:
            raise PeerUnreachable("away")
        known = {"check_token": self.tokens, "check_session": self.sessions}[method]
        if args[0] not in known:
            raise Unauthorized("who is that?")
        return known[str(args[0])]


def tokens() -> tuple[Door, ManualClock, TokenCheck]:
    door, clock = Door(), ManualClock()
    return door, clock, TokenCheck(MasterClient(door, clock, patience_s=0.0), clock)


def test_a_token_is_asked_for_once_and_believed_for_ten_seconds() -> None:
    door, clock, check = tokens()
    for _ in range(3):
        assert check.caller("Bearer good") == Caller("ci", Role.ADMIN)
    assert door.asked == 1
    clock.advance(REMEMBER_S - 0.1)
    check.caller("bearer  good")
    assert door.asked == 1
    clock.advance(0.2)
    door.tokens.clear()
    with pytest.raises(Unauthorized):
        check.caller("Bearer good")


@pytest.mark.parametrize(
    "header", [None, "", "Bearer", "Bearer ", "good", "Basic good", "Bearer bad", "Bearer " + "x" * 600, "Bearer gööd"]
)
def test_anything_else_is_no_token(header: str | None) -> None:
    _, _, check = tokens()
    with pytest.raises(Unauthorized):
        check.caller(header)


def test_a_wrong_token_is_not_remembered_so_a_new_one_counts_at_once() -> None:
    door, _, check = tokens()
    with pytest.raises(Unauthorized):
        check.caller("Bearer fresh")
    door.tokens[token_hash("fresh")] = {"name": "b", "role": "admin"}
    assert check.caller("Bearer fresh").name == "b"


def test_a_master_that_is_away_does_not_make_a_token_wrong() -> None:
    door, _, check = tokens()
    door.away = True
    with pytest.raises(PeerUnreachable):
        check.caller("Bearer good")


def test_the_memory_of_tokens_is_bounded() -> None:
    door, _, check = tokens()
    for number in range(1500):
        door.tokens[token_hash(f"t{number}")] = {"name": "n", "role": "admin"}
        check.caller(f"Bearer t{number}")
    assert len(check._callers._known) == 1000


def test_a_session_is_believed_for_ten_seconds_and_not_after_its_end() -> None:
    door, clock, _ = tokens()
    check = SessionCheck(MasterClient(door, clock, patience_s=0.0), clock)
    for _ in range(3):
        assert check.caller("cookie") == Caller("ann", Role.ADMIN, "s1")
    assert door.asked == 1
    check.log_out("cookie")
    assert not door.sessions
    for secret in ("cookie", "", "x" * 600, "gööd"):
        with pytest.raises(Unauthorized):
            check.caller(secret)


def test_what_was_revoked_elsewhere_is_believed_until_told() -> None:
    door, clock, check = tokens()
    sessions = SessionCheck(MasterClient(door, clock, patience_s=0.0), clock)
    check.caller("Bearer good")
    sessions.caller("cookie")
    door.tokens.clear()
    door.sessions.clear()
    check.caller("Bearer good")
    sessions.caller("cookie")
    check.forget_all()
    sessions.forget_all()
    with pytest.raises(Unauthorized):
        check.caller("Bearer good")
    with pytest.raises(Unauthorized):
        sessions.caller("cookie")


def test_an_answer_from_before_a_revocation_is_not_remembered_after_it() -> None:
    door, _, check = tokens()
    answer = door.call

    def revoked_meanwhile(*args: object, **more: object) -> object:
        said = answer(*args, **more)  # type: ignore[arg-type]
        door.tokens.clear()
        check.forget_all()
        return said

    door.call = revoked_meanwhile  # type: ignore[method-assign]
    check.caller("Bearer good")
    with pytest.raises(Unauthorized):
        check.caller("Bearer good")


@pytest.mark.parametrize("error", [LoginRefused, LoginUsed, LoginExpired])
def test_a_login_that_is_refused_says_nothing_about_the_webserver(error: type[LoginRefused]) -> None:
    class Refusing(Door):
        def call(self, method: str, *args: object, timeout_s: float, request_id: str | None = None) -> object:
            raise error()

    with pytest.raises(error, match="muster login"):
        MasterClient(Refusing(), ManualClock(), patience_s=0.0).act("log_in", "secret", "192.0.2.1", "")


def test_only_an_admin_may_do_everything() -> None:
    require_admin(Caller("a", Role.ADMIN))
    for role in (Role.WEB, Role.AGENT):
        with pytest.raises(Forbidden):
            require_admin(Caller("a", role))


@pytest.mark.parametrize(
    "host", [None, "localhost", "LOCALHOST:7440", "127.0.0.1:7440", "[::1]:80", "muster.lan", "localhost."]
)
def test_known_names_are_let_in(host: str | None) -> None:
    AllowedHosts("127.0.0.1", more=["Muster.lan", ""]).check(host)


@pytest.mark.parametrize(
    "host",
    [
        "",
        "evil.example",
        "localhost.evil.example",
        "127.0.0.1.evil",
        "10.0.0.1",
        "a b",
        "localhost:x",
        "[::1",
        "é",
        "localhost:65536",
    ],
)
def test_others_are_not(host: str) -> None:
    with pytest.raises(BadHost):
        AllowedHosts("127.0.0.1").check(host)


def test_listening_everywhere_any_address_will_do_but_no_foreign_name() -> None:
    hosts = AllowedHosts("0.0.0.0")
    hosts.check("192.0.2.7:7440")
    hosts.check("[2001:db8::1]")
    with pytest.raises(BadHost):
        hosts.check("evil.example")
