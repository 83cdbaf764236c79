"""The agent daemon put together: the one place that builds its parts and wires them, starts them and ends them.

Nothing is decided here but the order. Start: lock the directory, know who we are (or enrol), take over what a former
process left, then connect. End: see `agent.stopping`. Raises `MusterError` with a sentence for what a person has to
mend before an agent can run at all.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import gevent

from agent import enrol
from agent.attempt import AttemptKey, ExitRecord
from agent.attempts import Attempts
from agent.begin import BeginBarrier
from agent.blobs import ScriptCache
from agent.executor import Executor, ExecutorSettings
from agent.facts import HostFacts
from agent.holdings import Holding, Holdings
from agent.identity import AgentHome, Host, Identity, this_host
from agent.journal import Journal
from agent.link import MasterLink
from agent.orders import Orders
from agent.output import OutputSender
from agent.puller import Puller
from agent.reporter import Reporter
from agent.shepherd_link import ShepherdLink, ShepherdUnavailable
from agent.status import StatusPage
from agent.stopping import Ending
from agent.threads import OutputNews
from common import auth, log, notify
from common.backoff import Backoff
from common.clock import SystemClock
from common.config import Settings
from common.errors import NotFound, Unavailable
from common.ids import secret_token
from common.loop import ThreadBridge
from common.model import evolve
from common.rpc import RpcClient
from common.service import ServiceGroup, StopSignals
from common.version import VERSION

logger = logging.getLogger(__name__)

_SCRIPT_MOST = 64 * 1024 * 1024  # the master bounds scripts; this only keeps a wrong size from filling the memory
_PINGS_S = 5.0  # between the transport's own pings; three missed ones end a connection that died in silence


def main(
    settings: Settings,
    *,
    state_dir: Path,
    join_token: str | None = None,
    name: str | None = None,
    slots: int | None = None,
    labels: Mapping[str, str] | None = None,
    queues: list[str] | None = None,
    master_endpoint: str | None = None,
) -> int:
    """Run the agent of `state_dir` until it is told to stop; its exit code.

    `join_token` enrols it first. What is given of `name`, `slots`, `labels`, `queues` and `master_endpoint` is kept
    for later starts. Raises `MusterError`: the directory is in use, the token is no good, there is no identity.
    """
    log.configure("agent", log_format=settings.log_format, level=settings.log_level)
    host = this_host()
    home = AgentHome(state_dir)
    try:
        home.open()
        identity = home.load()
        if join_token is not None:
            identity = enrol.join(home, join_token, host=host, name=name, connect=lambda *who: _client(settings, *who))
        if identity is None:
            raise NotFound(
                f"{state_dir} belongs to no agent yet: run `muster agent-token` where the master is, and start this "
                "agent with --join TOKEN once."
            )
        identity = _told(identity, name=name, slots=slots, labels=labels, queues=queues, endpoint=master_endpoint)
        return Daemon(settings, home=home, host=host, identity=identity).run()
    except KeyboardInterrupt:
        return 130  # before the daemon listens to signals
    except OSError as error:
        raise Unavailable(f"The state directory {state_dir} cannot be used: {error.strerror or error}.") from error
    finally:
        home.close()


def _told(
    identity: Identity,
    *,
    name: str | None,
    slots: int | None,
    labels: Mapping[str, str] | None,
    queues: list[str] | None,
    endpoint: str | None,
) -> Identity:
    """The identity with what the command line says now; what it leaves out stays."""
    said: dict[str, Any] = {"name": name, "slots": slots, "labels": dict(labels or {}) or None, "queues": queues}
    if endpoint is not None:
        said["endpoint"] = enrol.with_transport(endpoint)
    return evolve(identity, **{field: value for field, value in said.items() if value is not None})


def _client(settings: Settings, identity: Identity, keys: auth.KeyPair, **more: Any) -> RpcClient:
    return RpcClient(
        identity.endpoint,
        server_key=identity.master_key.encode("ascii"),
        public_key=keys.public,
        secret_key=keys.secret,
        max_message_bytes=settings.agent_message,
        heartbeat_s=_PINGS_S,
        backoff=Backoff(base_s=0.25, cap_s=8.0),
        **more,
    )


class Daemon:
    """One agent process: its parts, wired. `run` is all there is to call."""

    _link: MasterLink
    _output: OutputSender

    def __init__(self, settings: Settings, *, home: AgentHome, host: Host, identity: Identity) -> None:
        self._settings = settings
        self._home = home
        self._host = host
        self._identity = identity
        self._kept: Identity | None = None  # what is known to be on disk
        self._slots = identity.slots or settings.slots or len(os.sched_getaffinity(0))
        self._clock = SystemClock()
        self._bridge = ThreadBridge()
        self._holdings = Holdings()
        self._signals = StopSignals()
        self._facts = HostFacts(home.path, clock=self._clock)
        self._build()
        self._wire()

    def _build(self) -> None:
        settings, clock, holdings = self._settings, self._clock, self._holdings
        client = _client(
            settings, self._identity, self._home.key_pair(), on_state=lambda state: self._link.connection_changed(state)
        )
        link = MasterLink(client, session=secret_token(), settings=settings, holdings=holdings, clock=clock)
        self._link = link
        news = OutputNews(self._bridge, lambda ends: self._output.grown(ends))
        self._shepherd = ShepherdLink(self._home.path, idle_exit_s=settings.shepherd_idle)
        self._executor = Executor(
            self._home.path,
            slots=self._slots,
            link=self._shepherd,
            journal=Journal(self._home.path / "journal.log"),
            settings=ExecutorSettings(
                kill_grace_s=settings.kill_grace,
                drain_quiet_s=settings.drain_quiet,
                drain_most_s=settings.drain_most,
            ),
            on_output=news.grown,
        )
        self._orders = Orders(holdings, self._executor)
        self._output = OutputSender(
            link=link,
            holdings=holdings,
            spools=self._executor,
            most_bytes=settings.agent_message // 2,
            clock=clock,
        )
        self._reporter = Reporter(link=link, clock=clock)
        self._attempts = Attempts(
            holdings=holdings,
            executor=self._executor,
            output=self._output,
            reporter=self._reporter,
            bridge=self._bridge,
        )
        self._barrier = BeginBarrier(
            link=link,
            holdings=holdings,
            executor=self._executor,
            orders=self._orders,
            scripts=ScriptCache(self._home.path / "blobs", link=link, largest=max(settings.max_script, _SCRIPT_MOST)),
            bridge=self._bridge,
            clock=clock,
        )
        self._puller = Puller(link=link, holdings=holdings, slots=self._slots, clock=clock)
        loops = (self._reporter, self._output, self._barrier, self._puller, link)
        self._status = StatusPage(self._home.path / "status", loops, head=self._headline, clock=clock)
        self._group = ServiceGroup("agent", [*loops, self._status])

    def _wire(self) -> None:
        link, orders, attempts, barrier, puller = (
            self._link, self._orders, self._attempts, self._barrier, self._puller,
        )  # fmt: skip
        self._holdings.on_busy = link.wake
        link.about = self._about
        link.facts = self._facts.read
        link.on_registered = self._registered
        link.on_ready = self._ready
        link.on_orders = orders.carry_out
        link.on_slots = self._set_slots
        link.on_beat = self._status.refresh
        puller.on_orders = orders.carry_out
        puller.on_claims = barrier.add
        orders.on_gone = barrier.drop
        barrier.on_begun = self._begun
        barrier.on_refusal = attempts.refused
        barrier.on_dropped = puller.wake
        barrier.on_trouble = puller.pause
        attempts.on_delivered = puller.delivered
        attempts.on_slot_free = self._slot_free
        self._output.on_complete = attempts.output_complete
        self._reporter.on_taken = attempts.taken
        self._reporter.on_need_output = attempts.output_lacking

    # -- the life of the process -------------------------------------------------------------------------------------

    def run(self) -> int:
        """Until a signal; see `agent.stopping`. The exit code."""
        self._signals.listen()
        logger.info("agent starts", extra=log.fields(state=self._home.path, slots=self._slots, pid=os.getpid()))
        pool = gevent.get_hub().threadpool
        try:
            self._attempts.adopt(pool.apply(self._executor.adopt))
        except ShepherdUnavailable as error:
            raise Unavailable(f"The agent cannot start its shepherd: {error}") from error
        self._group.start()
        try:
            self._signals.drain.wait()
            self._end()
        finally:
            self._group.stop()
            pool.apply(self._executor.close)
            self._bridge.close()
        return 0

    def _end(self) -> None:
        ending = Ending(
            link=self._link,
            puller=self._puller,
            barrier=self._barrier,
            holdings=self._holdings,
            orders=self._orders,
            changed=self._attempts.changed,
            clock=self._clock,
        )
        ending.drain(drain_s=self._settings.drain, stop_now=self._signals.stop_now)
        if self._signals.stop_now.is_set():
            ending.stop(kill_grace_s=self._settings.kill_grace)
        logger.info("agent stops", extra=log.fields(left=ending.summary()))

    def _headline(self) -> str:
        who = self._identity.name or "not named yet"
        master = self._identity.endpoint.removeprefix("tcp://")
        return f"agent {who}, process {os.getpid()}, master {master}\nshepherd: {self._shepherd.status}"

    # -- what a part tells another, where it takes more than a call --------------------------------------------------

    def _about(self) -> dict[str, Any]:
        return {
            "agent_id": self._identity.agent_id,
            "name": self._identity.name,
            "hostname": self._host.hostname,
            "machine_id": self._host.machine_id,
            "boot_id": self._host.boot_id,
            "version": VERSION,
            "slots": self._slots,
            "queues": self._identity.queues,
            "labels": self._identity.labels,  # None: never said here, so those the master knows stay
        }

    def _registered(self, answer: dict[str, Any], named: set[AttemptKey]) -> None:
        known_boot = self._identity.boot_id
        rebooted = known_boot is not None and known_boot != self._host.boot_id
        unknown = self._attempts.reconcile(answer, named, rebooted=rebooted)
        leases = self._holdings.leases()
        self._orders.carry_out({"stale": answer.get("drop") or []}, leases)
        # The old boot id stays until nothing of that boot is left to be reported as ended by the reboot.
        boot_id = known_boot if unknown and known_boot is not None else self._host.boot_id
        identity = evolve(
            self._identity,
            agent_id=answer.get("agent_id") or self._identity.agent_id,
            name=answer.get("name") or self._identity.name,
            boot_id=boot_id,
        )
        self._identity = identity
        if identity != self._kept:
            self._keep(identity)

    def _keep(self, identity: Identity) -> None:
        try:
            self._home.save(identity)
            self._kept = identity
        except OSError as error:
            # The key is what counts for the master; what is not kept now is told again at the next register.
            logger.error("identity not kept", extra=log.fields(reason=str(error)))

    def _ready(self) -> None:
        notify.ready()
        self._puller.renew()
        for loop in (self._barrier, self._output, self._reporter):
            loop.wake()

    def _set_slots(self, slots: int) -> None:
        self._puller.slots = slots
        self._executor.slots = slots
        self._puller.wake()

    def _begun(self, holding: Holding, future: Future[ExitRecord]) -> None:
        self._puller.went_well()
        self._attempts.begun(holding, future)

    def _slot_free(self) -> None:
        self._puller.wake()
        if self._barrier.waiting:
            self._barrier.wake()
