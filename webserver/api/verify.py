"""`/verify`: a check of the store's invariants."""

from __future__ import annotations

from typing import Any

import flask

from webserver import shapes
from webserver.rest import Answer, Call, Noun
from webserver.server import PATIENT

noun = Noun("verify", "Whether the store keeps its promises.")

LONGEST_S = 600.0


@noun.operation("GET", "/verify", answers={200: Answer("What was found.", shapes.Verification)})
def verify(call: Call) -> Any:
    """Check counts, leases, windows and offers of the running store.

    It reads everything: this may take long.
    """
    flask.request.environ[PATIENT] = True
    answer = call.web.master.read("verify", timeout_s=LONGEST_S)
    return {"findings": list(answer["findings"]), "checked": dict(answer["checked"])}
