"""Every error that may cross a door: a stable code, an HTTP status and a sentence for the person.

Raise the subclass where the fault is found; doors translate, nobody else does. The text says what to do.
`from_wire` gives the same class back on the other side of an RPC call.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar


@dataclass(frozen=True, slots=True)
class FieldError:
    """One fault of one field of a request: `field` is a path such as `targets[2]`, `message` a sentence."""

    field: str
    message: str


class MusterError(Exception):
    """Something went wrong inside muster."""

    code: ClassVar[str] = "internal"
    status: ClassVar[int] = 500

    def __init__(self, message: str | None = None, *, fields: list[FieldError] | None = None) -> None:
        self.message = message or (type(self).__doc__ or "").strip()
        self.fields = list(fields or [])
        super().__init__(self.message)

    def to_wire(self) -> dict[str, Any]:
        """The error as plain values: `code`, `message`, `fields` (list of [field, message])."""
        return {"code": self.code, "message": self.message, "fields": [[f.field, f.message] for f in self.fields]}


class InvalidRequest(MusterError):
    """The request is not valid; see the fields."""

    code = "invalid_request"
    status = 422

    @classmethod
    def of(cls, field: str, message: str) -> InvalidRequest:
        """One faulty field."""
        return cls(f"{field}: {message}", fields=[FieldError(field, message)])


class Malformed(MusterError):
    """The request could not be read."""

    code = "malformed"
    status = 400


class UnsupportedContentType(MusterError):
    """Send the body as application/json."""

    code = "unsupported_content_type"
    status = 415


class TooLarge(MusterError):
    """The request is larger than this server accepts."""

    code = "too_large"
    status = 413


class AnswerTooLarge(MusterError):
    """The answer is too large for one message: ask for fewer at a time."""

    code = "answer_too_large"
    status = 500


class Unauthorized(MusterError):
    """A valid token is needed: send it as `Authorization: Bearer TOKEN`."""

    code = "unauthorized"
    status = 401


class Forbidden(MusterError):
    """These credentials do not allow this call."""

    code = "forbidden"
    status = 403


class LoginRefused(Forbidden):
    """This login link is not good (any more): make a fresh one with `muster login`."""

    code = "login_refused"


class LoginUsed(LoginRefused):
    """This login link was used already: make a fresh one with `muster login`."""

    code = "login_used"


class LoginExpired(LoginRefused):
    """This login link has expired: make a fresh one with `muster login`."""

    code = "login_expired"


class UnknownKey(Forbidden):
    """This key is not enrolled with the master (or was revoked): enrol again with a fresh join token."""

    code = "unknown_key"


class NotFound(MusterError):
    """There is no such thing here."""

    code = "not_found"
    status = 404


class UnknownMethod(NotFound):
    """The peer has no such method."""

    code = "unknown_method"


class Conflict(MusterError):
    """The request does not fit the present state."""

    code = "conflict"
    status = 409


class NotAllowed(Conflict):
    """This event is not allowed in the run's present state."""

    code = "not_allowed"


class StaleLease(Conflict):
    """The lease is no longer held: the run has gone on without its holder."""

    code = "stale_lease"


class VersionConflict(Conflict):
    """Somebody else changed the record meanwhile."""

    code = "version_conflict"


class KeyReused(Conflict):
    """This Idempotency-Key was used before with another body: use a fresh key."""

    code = "idempotency_key_reused"


class RateLimited(MusterError):
    """Too many tries: wait a little."""

    code = "rate_limited"
    status = 429


class Busy(MusterError):
    """Too many calls are waiting: try again in a moment."""

    code = "busy"
    status = 503


class Unavailable(MusterError):
    """The master cannot do this now."""

    code = "unavailable"
    status = 503


class StoreUnavailable(Unavailable):
    """The store cannot write now (see /readyz); reading still works."""

    code = "store_unavailable"


class StoreFull(MusterError):
    """The disk of the master is full: nothing was stored; free space and submit again."""

    code = "store_full"
    status = 507


class PeerUnreachable(Unavailable):
    """The master cannot be reached."""

    code = "peer_unreachable"


class CallTimeout(Unavailable):
    """The peer did not answer in time."""

    code = "call_timeout"


class ProtocolError(MusterError):
    """The peer sent something that is not the protocol."""

    code = "protocol_error"
    status = 502


def _subclasses(cls: type[MusterError]) -> list[type[MusterError]]:
    return [cls] + [sub for child in cls.__subclasses__() for sub in _subclasses(child)]


def from_wire(code: str, message: str, fields: list[list[str]] | None = None) -> MusterError:
    """The error another process raised, as its own class; an unknown code becomes a plain `MusterError`.

    `fields` is a list of [field, message].
    """
    by_code = {cls.code: cls for cls in _subclasses(MusterError)}
    found = [FieldError(str(f[0]), str(f[1])) for f in fields or [] if len(f) == 2]
    return by_code.get(code, MusterError)(message, fields=found)
