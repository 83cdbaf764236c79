"""`/agent-tokens`: permissions to enrol."""

from __future__ import annotations

from typing import Any

from common.errors import StoreFull
from webserver import shapes, wording
from webserver.rest import Answer, Call, Nothing, Noun

noun = Noun("agent-tokens", "Permissions for new hosts to enrol.")


@noun.operation(
    "POST",
    "/agent-tokens",
    body=Nothing,
    answers={201: Answer("The token; it is shown this once.", shapes.AgentToken)},
    refuses=(StoreFull,),
)
def add_agent_token(call: Call) -> Any:
    """Make a token with which one new host can enrol."""
    return wording.agent_token(call.web.master.act("add_agent_token"))
