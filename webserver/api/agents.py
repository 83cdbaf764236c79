"""`/agents`: the fleet."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import UNSET, UnsetType

from common.errors import Conflict, NotFound, StoreFull
from common.model import AgentState
from webserver import shapes, wording
from webserver.api.tasks import Cursor, Limit, Text
from webserver.cursors import unseal
from webserver.rest import Answer, Call, Nothing, Noun, Query, Reply, list_of, several

noun = Noun("agents", "The hosts' daemons that run scripts.")


Labels = Annotated[dict[str, str], msgspec.Meta(description="all labels; null: those the agent announces")]
Slots = Annotated[int, msgspec.Meta(ge=1, le=10_000, description="attempts at once; null: what the agent says")]


class AgentListQuery(Query, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which agents to list."""

    state: Annotated[str, list_of(AgentState, "in one of these states, separated by commas")] | UnsetType = UNSET
    q: (
        Annotated[Text, msgspec.Meta(description="with this in their name, host name, or `label=value`, in any case")]
        | UnsetType
    ) = UNSET
    limit: Limit = 50
    cursor: Cursor | UnsetType = UNSET

    def __post_init__(self) -> None:
        several(AgentState, self.state, field="state")

    def where(self) -> dict[str, Any]:
        """What the master is asked for."""
        asked = {"state": several(AgentState, self.state, field="state"), "q": self.q}
        return {name: value for name, value in asked.items() if value is not None and value is not UNSET}


class AgentRunsQuery(Query, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which of an agent's runs to list."""

    limit: Limit = 50
    cursor: Cursor | UnsetType = UNSET


class AgentChanges(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What to change; what is left out stays."""

    labels: Labels | UnsetType | None = UNSET
    slots: Slots | UnsetType | None = UNSET


@noun.operation("GET", "/agents", query=AgentListQuery, answers={200: Answer("Agents, by name.", shapes.AgentPage)})
def list_agents(call: Call) -> Any:
    """List agents."""
    query: AgentListQuery = call.query
    cursor = unseal("agents", query.cursor)
    page = call.web.master.read("list_agents", query.limit, cursor, query.where())
    return wording.page("agents", page, wording.agent)


@noun.operation(
    "GET", "/agents/{agent}", answers={200: Answer("The agent.", shapes.Agent)}, refuses=(NotFound, Conflict)
)
def get_agent(call: Call) -> Any:
    """Look at an agent."""
    return wording.agent(call.web.master.read("get_agent", call.path["agent"]))


@noun.operation(
    "GET",
    "/agents/{agent}/samples",
    answers={200: Answer("What is known of the last hour.", shapes.AgentSamples)},
    refuses=(NotFound, Conflict),
)
def get_agent_samples(call: Call) -> Any:
    """Look at an agent's load over the last hour."""
    return call.web.master.read("agent_samples", call.path["agent"])


@noun.operation(
    "GET",
    "/agents/{agent}/runs",
    query=AgentRunsQuery,
    answers={200: Answer("Runs, those of the newest task first.", shapes.AgentRunPage)},
    refuses=(NotFound, Conflict),
)
def list_agent_runs(call: Call) -> Any:
    """List an agent's runs.

    Those that are addressed to it, and those that it holds or held last.
    """
    query: AgentRunsQuery = call.query
    page = call.web.master.read("agent_runs", call.path["agent"], query.limit, unseal("agent_runs", query.cursor))
    return wording.page("agent_runs", page, wording.agent_run)


@noun.operation(
    "PATCH",
    "/agents/{agent}",
    body=AgentChanges,
    body_required=True,
    answers={200: Answer("The agent as it is now.", shapes.Agent)},
    refuses=(NotFound, Conflict, StoreFull),
)
def patch_agent(call: Call) -> Any:
    """Change an agent's labels or slots."""
    changes = {name: getattr(call.body, name) for name in ("labels", "slots")}
    given = {name: value for name, value in changes.items() if value is not UNSET}
    return wording.agent(call.web.master.read("patch_agent", call.path["agent"], given))


@noun.operation(
    "POST",
    "/agents/{agent}/drain",
    body=Nothing,
    answers={200: Answer("The agent as it is now.", shapes.Agent)},
    refuses=(NotFound, Conflict, StoreFull),
)
def drain_agent(call: Call) -> Any:
    """Drain an agent.

    It gets nothing new; what it holds it finishes.
    """
    return wording.agent(call.web.master.read("drain_agent", call.path["agent"]))


@noun.operation(
    "POST",
    "/agents/{agent}/resume",
    body=Nothing,
    answers={200: Answer("The agent as it is now.", shapes.Agent)},
    refuses=(NotFound, Conflict, StoreFull),
)
def resume_agent(call: Call) -> Any:
    """Give a drained agent work again."""
    return wording.agent(call.web.master.read("resume_agent", call.path["agent"]))


@noun.operation(
    "POST",
    "/agents/{agent}/revoke",
    body=Nothing,
    answers={200: Answer("The agent as it is now; its next message is refused.", shapes.Agent)},
    refuses=(NotFound, Conflict, StoreFull),
)
def revoke_agent(call: Call) -> Any:
    """Refuse an agent's key from now on.

    Also while it is online. A fresh join token lets the host enrol again.
    """
    return wording.agent(call.web.master.read("revoke_agent", call.path["agent"]))


@noun.operation(
    "DELETE",
    "/agents/{agent}",
    answers={204: Answer("The agent is forgotten and its key no longer accepted.", content_type="")},
    refuses=(NotFound, Conflict, StoreFull),
)
def forget_agent(call: Call) -> Reply:
    """Forget an agent that is offline."""
    call.web.master.act("forget_agent", call.path["agent"])
    return Reply(None, 204)
