"""`/login-links` and `/tokens`: who may use it."""

from __future__ import annotations

from typing import Annotated, Any

import flask
import msgspec
from msgspec import UNSET, UnsetType

from common.errors import Conflict, NotFound, StoreFull
from common.requests import TOKEN_NAME, TOKEN_NAME_MOST
from webserver import shapes, wording
from webserver.rest import Answer, Call, Noun, Reply
from webserver.security import base_url

noun = Noun("access", "Who may use it: login links for browsers, tokens for programs.")

_DOES = "for people: it is shown beside what was done with it"
# JSON has no lone surrogates, and readers of patterns no way to say them.
_NAME_PATTERN = TOKEN_NAME.replace(r"\ud800-\udfff", "")
Name = Annotated[
    str,
    msgspec.Meta(
        min_length=1, max_length=TOKEN_NAME_MOST, extra_json_schema={"pattern": _NAME_PATTERN}, description=_DOES
    ),
]


class LoginLinkRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Whom the link logs in; left out: the caller's name."""

    name: Name | UnsetType = UNSET


class TokenRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the token is to be called."""

    name: Name


@noun.operation(
    "POST",
    "/login-links",
    body=LoginLinkRequest,
    answers={201: Answer("The link; it is shown this once.", shapes.LoginLink)},
    refuses=(StoreFull,),
)
def add_login_link(call: Call) -> Any:
    """Make a link that logs a browser in, once."""
    name = call.caller.name if call.body.name is UNSET else call.body.name
    made = call.web.master.act("add_login_link", name, call.caller.name)
    base = base_url(call.web.settings, flask.request)
    return wording.login_link(made, base=base)


@noun.operation("GET", "/tokens", answers={200: Answer("All that are good, the newest first.", shapes.TokenPage)})
def list_tokens(call: Call) -> Any:
    """List API tokens and the sessions of browsers."""
    return wording.page("tokens", call.web.master.read("list_tokens"), wording.token)


@noun.operation(
    "POST",
    "/tokens",
    body=TokenRequest,
    body_required=True,
    answers={201: Answer("The token with its secret, which is shown this once.", shapes.NewToken)},
    refuses=(Conflict, StoreFull),
)
def add_token(call: Call) -> Any:
    """Make an API token for a program."""
    return wording.new_token(call.web.master.act("add_token", call.body.name, call.caller.name))


@noun.operation(
    "DELETE",
    "/tokens/{token_id}",
    answers={204: Answer("The token is refused from now on, the session ended.", content_type="")},
    refuses=(NotFound, Conflict, StoreFull),
)
def revoke_token(call: Call) -> Reply:
    """Revoke an API token, or end a session."""
    call.web.master.act("revoke_token", call.path["token_id"], call.caller.name)
    call.web.tokens.forget_all()
    call.web.sessions.forget_all()
    return Reply(None, 204)
