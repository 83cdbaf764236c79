"""What the pages and the REST API are given to work with: one record, built in `webserver.app`."""

from __future__ import annotations

from dataclasses import dataclass

from common.clock import Clock
from common.config import Settings
from webserver.master_client import MasterClient
from webserver.metrics import WebMetrics
from webserver.security import SessionCheck, TokenCheck
from webserver.stream import EventStreams


@dataclass(frozen=True, slots=True)
class Services:
    """Everything a request may need."""

    settings: Settings
    clock: Clock
    master: MasterClient
    tokens: TokenCheck
    sessions: SessionCheck
    streams: EventStreams
    metrics: WebMetrics
