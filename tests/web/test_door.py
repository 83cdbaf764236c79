"""The door of the pages: who gets in, what may be posted, what answers carry."""

from __future__ import annotations

from collections.abc import Iterator
from urllib.parse import urlencode

import flask
import pytest

from common.auth import token_hash
from common.config import Settings, load
from common.errors import InvalidRequest, LoginExpired, LoginRefused, LoginUsed, RateLimited, Unauthorized, Unavailable
from tests.support.fake_web_master import FakeWebMaster
from tests.support.web import Answer, Http, webserver_for
from webserver import languages, problems
from webserver.pages.access import local_path
from webserver.pages.door import Visit, csrf_token

SECRET = "s" * 43
FORM = "application/x-www-form-urlencoded"


class _Master(FakeWebMaster):
    """Knows one session and one login link."""

    def __init__(self) -> None:
        super().__init__()
        self.sessions = {token_hash(SECRET): "eve"}
        self.links = {"good": SECRET}
        self.log_ins: list[tuple[str, str, str]] = []

    def do_check_session(self, sha256: str) -> dict[str, str]:
        if sha256 not in self.sessions:
            raise Unauthorized()
        return {"name": self.sessions[sha256], "role": "admin", "id": "session-1"}

    def do_log_in(self, secret: str, address: str, about: str) -> dict[str, str]:
        self.log_ins.append((secret, address, about))
        if secret not in self.links:
            raise LoginRefused()
        return {"session": self.links.pop(secret), "name": "eve", "id": "session-1"}

    def do_log_out(self, sha256: str) -> bool:
        return self.sessions.pop(sha256, None) is not None

    def do_list_tokens(self) -> dict[str, list[object]]:
        return {"items": []}


@pytest.fixture
def master() -> Iterator[_Master]:
    with _Master() as master:
        yield master


@pytest.fixture
def http(master: _Master) -> Iterator[Http]:
    with webserver_for(master) as web:
        yield Http(web.address, token=None)


def cookie(http: Http, secret: str = SECRET) -> str:
    return f"muster_session_{http.address[1]}={secret}"


def host(http: Http) -> str:
    return f"127.0.0.1:{http.address[1]}"


def visit(http: Http, path: str, **headers: str | None) -> Answer:
    return http.get(path, Cookie=cookie(http), Host=host(http), **headers)


def send(http: Http, path: str, csrf: str | None = csrf_token(SECRET), **headers: str | None) -> Answer:
    raw = urlencode({"csrf": csrf} if csrf is not None else {}).encode()
    told = {"Cookie": cookie(http), "Host": host(http), "Content_Type": FORM, **headers}
    return http.call("POST", path, raw=raw, **told)


def test_a_stranger_is_shown_the_way_in_and_comes_back(http: Http) -> None:
    answer = http.get("/tokens?a=b", Host=host(http))
    assert (answer.status, answer.headers["Location"]) == (303, "/login?next=%2Ftokens%3Fa%3Db")
    assert http.get("/login", Host=host(http)).status == 200


def test_a_script_without_a_session_leads_to_the_way_in_and_back_to_its_page(http: Http) -> None:
    told = {"Host": host(http), "HX_Request": "true"}
    page = f"http://{host(http)}/agents?state=offline#add"
    answer = http.get("/fleet", **told, HX_Current_URL=page)
    assert (answer.status, answer.headers["HX-Redirect"]) == (401, "/login?next=%2Fagents%3Fstate%3Doffline")
    assert http.get("/fleet", **told).headers["HX-Redirect"] == "/login"


def test_a_stranger_cannot_post(http: Http, master: _Master) -> None:
    answer = http.call("POST", "/tokens", raw=b"name=x", Content_Type=FORM, Host=host(http))
    assert answer.status == 303 and answer.headers["Location"] == "/login"
    assert master.count("add_token") == 0


def test_a_session_gets_in_and_what_was_ended_does_not(http: Http) -> None:
    assert visit(http, "/tokens").status == 200
    answer = send(http, "/logout")
    assert answer.status == 303 and answer.headers["Location"] == "/login"
    assert visit(http, "/tokens").status == 303


@pytest.mark.parametrize("csrf", [None, "", "0" * 40, csrf_token("another")])
def test_a_form_without_this_sessions_mark_changes_nothing(http: Http, master: _Master, csrf: str | None) -> None:
    answer = send(http, "/logout", csrf)
    assert answer.status == 403
    assert master.sessions


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Origin": "http://127.0.0.1:1"},
        {"Sec_Fetch_Site": "cross-site"},
        {"Sec_Fetch_Site": "same-site"},
        {"Origin": "http://[::1"},
    ],
)
def test_what_another_site_caused_is_refused(http: Http, master: _Master, headers: dict[str, str]) -> None:
    assert send(http, "/logout", **headers).status == 403
    assert master.sessions


def test_our_own_origin_is_fine(http: Http) -> None:
    assert send(http, "/logout", Origin=f"http://{host(http)}", Sec_Fetch_Site="same-origin").status == 303


def test_a_look_at_a_login_link_does_not_use_it_up(http: Http, master: _Master) -> None:
    for _ in range(3):
        answer = http.get("/login/good", Host=host(http))
        assert answer.status == 200 and "Set-Cookie" not in answer.headers
    assert master.log_ins == []


def test_a_login_link_makes_a_session_that_scripts_cannot_read(http: Http, master: _Master) -> None:
    answer = http.call(
        "POST",
        "/login/good",
        raw=b"next=%2Fagents",
        Content_Type=FORM,
        Host=host(http),
        User_Agent="Mozilla Firefox/1 Linux",
    )
    assert answer.status == 303 and answer.headers["Location"] == "/agents"
    made = answer.headers["Set-Cookie"]
    assert made.startswith(f"{cookie(http)};") and "HttpOnly" in made and "SameSite=Lax" in made and "Path=/" in made
    assert master.log_ins[0][1:] == ("127.0.0.1", "Firefox (Linux), 127.0.0.1")


@pytest.mark.parametrize(
    ("error", "said"), [(LoginUsed(), "used already"), (LoginExpired(), "too old"), (LoginRefused(), "not known")]
)
def test_a_link_that_is_no_good_says_why(http: Http, master: _Master, error: LoginRefused, said: str) -> None:
    master.fail("log_in", error)
    answer = http.call("POST", "/login/bad", raw=b"", Content_Type=FORM, Host=host(http))
    assert answer.status == 403 and said in answer.body.decode()


def test_too_many_logins_are_told_so(http: Http, master: _Master) -> None:
    master.fail("log_in", RateLimited("Too many."))
    answer = http.call("POST", "/login/bad", raw=b"", Content_Type=FORM, Host=host(http))
    assert answer.status == 429 and answer.headers["Retry-After"]


def test_a_session_reads_the_api_and_changes_nothing_through_it(http: Http, master: _Master) -> None:
    master.task()
    assert visit(http, "/api/v1/tasks").status == 200
    sent = http.call("POST", "/api/v1/agent-tokens", raw=b"{}", Cookie=cookie(http), Host=host(http))
    assert sent.status == 401
    assert master.count("add_agent_token") == 0


def test_pages_carry_the_policy_and_are_not_kept(http: Http) -> None:
    answer = visit(http, "/tokens")
    policy = answer.headers["Content-Security-Policy"]
    assert "default-src 'none'" in policy and "unsafe" not in policy and "frame-ancestors 'none'" in policy
    nonce = policy.split("'nonce-")[1].split("'")[0]
    assert nonce in answer.body.decode()
    assert nonce not in visit(http, "/tokens").headers["Content-Security-Policy"]
    assert answer.headers["Cache-Control"] == "no-store" and answer.headers["X-Frame-Options"] == "DENY"


def test_errors_are_pages_for_browsers_and_problems_for_programs(http: Http) -> None:
    page = visit(http, "/nothing", Accept="text/html,*/*;q=0.8")
    assert page.status == 404 and page.headers["Content-Type"].startswith("text/html") and b"Not found" in page.body
    visit(http, "/nothing", Accept="application/json").refused(404, "not_found")
    visit(http, "/api/v1/nothing", Accept="text/html").refused(404, "not_found")


def test_language_by_header_by_choice_and_never_unknown(http: Http) -> None:
    def tag(**headers: str) -> str:
        return http.get("/login", Host=host(http), **headers).body.decode().split('<html lang="')[1].split('"')[0]

    assert tag() == "en"
    assert tag(Accept_Language="fr, zh-TW;q=0.8, en;q=0.5") == "zh-Hans-CN"
    assert tag(Accept_Language="en-GB, zh;q=0.5") == "en"
    assert tag(Cookie="muster_language=zh-Hans-CN") == "zh-Hans-CN"
    assert tag(Cookie="muster_language=../../etc") == "en"
    chosen = http.call("POST", "/preferences", raw=b"language=xx", Content_Type=FORM, Host=host(http))
    assert chosen.status == 422 and "Set-Cookie" not in chosen.headers


def test_static_files_are_kept_for_ever_and_nothing_else_is_served(http: Http) -> None:
    address = visit(http, "/tokens").body.decode().split('rel="stylesheet" href="')[1].split('"')[0]
    file = http.get(address, Host=host(http), Accept_Encoding="gzip")
    assert (
        file.status == 200
        and file.headers["Content-Encoding"] == "gzip"
        and "immutable" in file.headers["Cache-Control"]
    )
    prefix = address.rsplit("/", 2)[0]
    for path in (
        f"{prefix}/../app.py",
        f"{prefix}/%2e%2e/app.py",
        f"{prefix}//etc/passwd",
        "/static/x/templates/base.html",
    ):
        assert http.get(path, Host=host(http)).status == 404, path


@pytest.mark.parametrize(
    "text",
    ["//evil.example", "https://evil.example", "/\\evil.example", "javascript:alert(1)", "", "/a\nb", "\\\\evil"],
)
def test_nobody_is_sent_elsewhere(text: str) -> None:
    assert local_path(text) == "/"


def test_a_path_of_ours_is_kept() -> None:
    assert local_path("/tasks?state=failed&name=备份") == "/tasks?state=failed&name=备份"


@pytest.mark.parametrize("method", ["OPTIONS", "PUT", "PATCH", "DELETE", "BREW"])
@pytest.mark.parametrize(("path", "allowed"), [("/tokens", "GET, HEAD, POST"), ("/logout", "POST"), ("/", "GET, HEAD")])
def test_a_page_names_the_methods_it_takes(http: Http, method: str, path: str, allowed: str) -> None:
    program = http.call(method, path, Host=host(http))
    program.refused(405, "method_not_allowed")
    browser = http.call(method, path, Host=host(http), Accept="text/html,*/*;q=0.8")
    assert (browser.status, browser.headers["Content-Type"]) == (405, "text/html; charset=utf-8")
    assert program.headers["Allow"] == browser.headers["Allow"] == allowed
    assert f"{method} is not possible here" in browser.body.decode()


def test_what_is_no_page_is_told_as_the_visitor_reads_it(http: Http) -> None:
    http.get("/nothing", Host=host(http)).refused(404, "not_found")
    browser = http.get("/nothing", Host=host(http), Accept="text/html")
    assert (browser.status, browser.headers["Content-Type"]) == (404, "text/html; charset=utf-8")


@pytest.mark.parametrize("path", ["/tokens", "/login", "/nothing"])
def test_the_head_of_a_page_is_that_of_the_page(http: Http, path: str) -> None:
    told = {"Cookie": cookie(http), "Host": host(http), "Accept": "text/html"}
    page, head = http.get(path, **told), http.call("HEAD", path, **told)
    assert (head.status, head.body, head.headers["Content-Type"]) == (page.status, b"", page.headers["Content-Type"])


def test_a_stranger_who_asks_for_the_head_is_shown_the_way_in(http: Http) -> None:
    answer = http.call("HEAD", "/tokens", Host=host(http))
    assert (answer.status, answer.headers["Location"]) == (303, "/login?next=%2Ftokens")


def test_a_session_reads_the_api_and_changes_nothing_there(http: Http) -> None:
    told = {"Cookie": cookie(http), "Host": host(http)}
    assert http.get("tokens", **told).status == http.call("HEAD", "tokens", **told).status == 200
    http.post("agent-tokens", {}, **told).refused(401, "unauthorized")


@pytest.mark.parametrize("path", ["/login/good", "/preferences"])
def test_a_stranger_cannot_send_a_large_form(http: Http, master: _Master, path: str) -> None:
    raw = b"a&" * 40_000
    answer = http.call("POST", path, raw=raw, Content_Type=FORM, Host=host(http), Accept="text/html")
    assert answer.status == 413
    assert master.log_ins == []


def test_a_login_link_is_told_to_no_log(http: Http, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG")
    http.call("POST", "/login/good", raw=b"", Content_Type=FORM, Host=host(http), Origin="http://evil.example")
    with flask.Flask("faults").test_request_context("/login/good"):
        problems.from_fault(ValueError())
    told = [record.__dict__ for record in caplog.records]
    assert len(told) > 1 and "/login/good" not in str(told)


def test_a_part_of_a_page_that_cannot_be_had_changes_nothing_on_the_page(http: Http, master: _Master) -> None:
    master.fail("check_session", Unavailable("The master is away."))
    answer = visit(http, "/tokens", HX_Request="true", Accept="text/html")
    assert (answer.status, answer.body, answer.headers["HX-Reswap"]) == (503, b"", "none")
    assert "The master is away." in answer.headers["HX-Trigger"]


def test_behind_a_proxy_links_and_cookies_are_of_the_public_address(master: _Master) -> None:
    with webserver_for(master, Settings(public_url="https://muster.example.net/")) as web:
        http = Http(web.address, token=None)
        answer = http.call("POST", "/login/good", raw=b"", Content_Type=FORM, Host="muster.example.net")
        assert answer.status == 303 and "; Secure" in answer.headers["Set-Cookie"]
        kept = {"Cookie": answer.headers["Set-Cookie"].partition(";")[0], "Host": "muster.example.net"}
        raw = urlencode({"csrf": csrf_token(SECRET)}).encode()
        told = {"Content_Type": FORM, "Origin": "https://muster.example.net", **kept}
        assert http.call("POST", "/logout", raw=raw, **told).status == 303
        assert http.get("/login", Host="evil.example").status == 400


def test_a_link_on_another_site_cannot_make_a_session_read_the_api(http: Http, master: _Master) -> None:
    master.task()
    assert visit(http, "/api/v1/tasks", Sec_Fetch_Site="cross-site").status == 401
    assert visit(http, "/api/v1/tasks", Sec_Fetch_Site="same-origin").status == 200
    assert visit(http, "/tokens", Sec_Fetch_Site="cross-site").status == 200  # a link to a page is fine


def test_logging_in_anew_ends_the_session_that_this_browser_had(http: Http, master: _Master) -> None:
    fresh = "f" * 43
    master.links["again"] = fresh
    http.call("POST", "/login/again", raw=b"", Content_Type=FORM, Host=host(http), Cookie=cookie(http))
    assert token_hash(SECRET) not in master.sessions


def test_a_long_notice_fits_into_its_cookie(http: Http, master: _Master) -> None:
    with flask.Flask("x").test_request_context("/"):
        visit = Visit(None, None, None, None, languages.CHINESE)  # type: ignore[arg-type]
        response = visit.redirect("/", notice="任务" * 400)
    assert len(response.headers["Set-Cookie"]) < 4096


@pytest.mark.parametrize("text", ["muster.example.net", "https://a.example/x", "ftp://a", "https://", "javascript:x"])
def test_a_public_address_is_one(text: str) -> None:
    with pytest.raises(InvalidRequest, match="public_url"):
        load(environ={"MUSTER_PUBLIC_URL": text})
