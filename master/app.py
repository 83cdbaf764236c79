"""The master put together: the one place that builds its parts, starts them in order and stops them in reverse.

    from master.app import main
    main(settings, data_dir=Path("DIR"), agent_listen="0.0.0.0:7441", web_listen="127.0.0.1:7442")

`main` is what `muster master` runs. `Master` is the same without signals and logging, for tests: `start`, then the
endpoints, then `stop`. The doors open only when everything stored has been taken over.
"""

from __future__ import annotations

import gc
import logging
import socket
from pathlib import Path

import gevent
from gevent.event import Event

from common import auth, log, notify
from common.clock import Clock, SystemClock
from common.config import Settings
from common.descriptors import raise_limit
from common.loop import LoopLag
from common.model import Agent, Role, Run, TrustedKey
from common.rpc import RpcMetrics, RpcServer
from common.service import ServiceGroup, StopSignals
from master.access import Access, AccessLoop
from master.agents import Agents
from master.answers import Answers
from master.blobs import Submissions
from master.clock import EngineClock
from master.dispatch import Dispatch
from master.enrolment import Enrolment
from master.events import Feed, OutputNews
from master.keeper import Keeper, Pulse, Stillness
from master.keys import ADMIN_TOKEN_FILE, TRUSTED_FILE, Keys, ensure_admin_token, import_trusted
from master.leases import Leases
from master.ledger import Ledger
from master.metrics import Metrics, Readiness, Sources
from master.output import OutputStore
from master.outputs import Outputs
from master.overview import Overview
from master.presence import Fleet
from master.preview import Previews
from master.results import Results
from master.rpc_agent import AgentDoor
from master.rpc_web import WebDoor
from master.samples import Samples
from master.store.base import ReadTx
from master.store.sqlite import SqliteStore
from master.tasks import Tasks
from master.waiting import Pulls, Waits

logger = logging.getLogger(__name__)

STORE_FILE = "muster.db"
OUTPUT_FILE = "output.db"
_FAREWELL_TURNS = 20
_FAREWELL_TURN_S = 0.05
"""The doors close when nothing waits any more, or after so many turns; one turn more lets the last answers leave."""
_GC_THRESHOLDS = (20_000, 20, 20)


def main(
    settings: Settings, *, data_dir: Path, agent_listen: str, web_listen: str, advertise: str | None = None
) -> int:
    """Run the master of `data_dir` until it is told to stop; its exit code.

    `agent_listen` and `web_listen` are HOST:PORT; `advertise` is the HOST:PORT that join tokens name, found out when
    left out. Raises `MusterError`: the directory is in use, an address is taken, a file is not what it should be.
    """
    log.configure("master", log_format=settings.log_format, level=settings.log_level)
    signals = StopSignals()
    raise_limit()  # each agent's connection takes a descriptor
    master = Master(settings, data_dir=data_dir, agent_listen=agent_listen, web_listen=web_listen, advertise=advertise)
    try:
        master.start()
        # What is here now stays; looking through it again and again would only make the loop late.
        gc.collect()
        gc.freeze()
        gc.set_threshold(*_GC_THRESHOLDS)
        signals.listen()
        notify.ready()
        signals.drain.wait()
    except KeyboardInterrupt:
        return 130  # before the master listens to signals
    finally:
        notify.send("STOPPING=1")
        master.stop()
    return 0


class Master:
    """All parts, wired. `clock` and `keeper_runs=False` are for tests that move time by hand."""

    def __init__(
        self,
        settings: Settings,
        *,
        data_dir: Path,
        agent_listen: str,
        web_listen: str,
        advertise: str | None = None,
        clock: Clock | None = None,
        keeper_runs: bool = True,
    ) -> None:
        self.settings = settings
        self.data_dir = data_dir
        self._listen = (agent_listen, web_listen)
        self._advertise = advertise
        self._keeper_runs = keeper_runs
        self.clock: Clock = clock or SystemClock()
        self.engine_clock = EngineClock(self.clock)
        data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        (data_dir / "keys").mkdir(mode=0o700, exist_ok=True)
        self.server_keys = auth.load_or_create_key_pair(data_dir / "keys" / "master.key")
        self.web_keys = auth.load_or_create_key_pair(data_dir / "keys" / "web.key")
        self._stopping = Event()
        self._started = False
        self._build_state()
        self._build_use_cases()
        self._build_doors()

    # -- building ------------------------------------------------------------------------------------------------------

    def _build_state(self) -> None:
        settings = self.settings
        busy_s, readers = settings.sqlite_busy, max(1, settings.readers)
        self.store = SqliteStore(self.data_dir / STORE_FILE, mark=self._mark, busy_s=busy_s, readers=readers)
        self.output = OutputStore(self.data_dir / OUTPUT_FILE, busy_s=busy_s, readers=readers)
        self.keys = Keys()
        self.fleet = Fleet()
        self.leases = Leases(begin_s=settings.begin_lease, lease_s=settings.lease)
        self.pulls = Pulls()
        self.waits = Waits()
        self._feed_waits = Waits()
        self.ledger = Ledger(
            self.store,
            self.engine_clock,
            leases=self.leases,
            pulls=self.pulls,
            waits=self.waits,
            feed_waits=self._feed_waits,
        )
        self.ledger.know_agents(self.fleet.ids)
        self.lag = LoopLag(self.clock)

    def _mark(self) -> tuple[float, int]:
        now = self.engine_clock.now()
        return now.engine_s, now.wall_ms

    def _build_use_cases(self) -> None:
        settings, ledger, fleet, leases, pulls = self.settings, self.ledger, self.fleet, self.leases, self.pulls
        self.submissions = Submissions(ledger, leases, inline_most=settings.inline_script)
        self.agents = Agents(ledger, fleet, leases, pulls, self.keys, settings, samples=Samples())
        self.enrolment = Enrolment(
            ledger, self.agents, fleet, self.keys, settings, server_key=self.server_keys.public_text
        )
        self.access = Access(ledger, self.keys, settings)
        self.tasks = Tasks(ledger, fleet, pulls, self.submissions, settings)
        self.dispatch = Dispatch(ledger, self.agents, leases, pulls, self.submissions, settings)
        self.output_news = OutputNews(ledger, leases, clock=self.clock)
        self.outputs = Outputs(self.output, ledger, leases, self.submissions, self.output_news, settings)
        self.results = Results(ledger, leases, self.outputs)
        self.answers = Answers(ledger, fleet, leases, self.submissions, self.outputs)
        self.feed = Feed(ledger, self._feed_waits)
        self.stillness = Stillness(self.engine_clock, fleet, leases)
        self.keeper = Keeper(ledger, self.agents, fleet, leases, pulls, self.stillness, settings, clock=self.clock)
        kept = [Pulse(self.stillness, clock=self.clock), self.keeper, AccessLoop(self.access, ledger, clock=self.clock)]
        self.loops = ServiceGroup("master", [self.output_news, *(kept * self._keeper_runs)])

    def _build_doors(self) -> None:
        settings = self.settings
        agent_metrics, web_metrics = RpcMetrics(), RpcMetrics()
        sources = Sources(
            ledger=self.ledger,
            output=self.output,
            fleet=self.fleet,
            leases=self.leases,
            pulls=self.pulls,
            lag=self.lag,
            doors={"agent": agent_metrics, "web": web_metrics},
            data_dir=self.data_dir,
        )
        agent_door = AgentDoor(
            keys=self.keys, fleet=self.fleet, leases=self.leases, agents=self.agents, enrolment=self.enrolment,
            dispatch=self.dispatch, outputs=self.outputs, results=self.results, submissions=self.submissions,
            settings=settings,
        )  # fmt: skip
        readiness = Readiness(sources)
        self.overview = Overview(self.ledger, self.fleet, self.leases, answers=self.answers, readiness=readiness)
        web_door = WebDoor(
            ledger=self.ledger, access=self.access, tasks=self.tasks,
            previews=Previews(self.tasks, self.fleet, self.leases), answers=self.answers, agents=self.agents,
            enrolment=self.enrolment, submissions=self.submissions, output=self.output, feed=self.feed,
            waits=self.waits, metrics=Metrics(sources), readiness=readiness, overview=self.overview,
            stopping=self._stopping,
        )  # fmt: skip
        agent_listen, web_listen = self._listen
        self.agent_server = RpcServer(
            f"tcp://{agent_listen}", agent_door.table(),
            secret_key=self.server_keys.secret, public_key=self.server_keys.public,
            authorize=self.keys.admit_agent, max_message_bytes=settings.agent_message,
            max_pending_per_peer=settings.pending_per_peer, max_pending=settings.pending, metrics=agent_metrics,
        )  # fmt: skip
        self.web_server = RpcServer(
            f"tcp://{web_listen}", web_door.table(),
            secret_key=self.server_keys.secret, public_key=self.server_keys.public,
            authorize=self.keys.admit_web, max_message_bytes=settings.web_message,
            max_pending_per_peer=settings.pending, max_pending=settings.pending, metrics=web_metrics,
        )  # fmt: skip

    # -- start and stop ------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Open the stores, take over what they hold, then open the doors. Raises `MusterError` with what to do."""
        self._started = True
        self.store.open()
        self.output.open()
        mark = self.store.read(lambda tx: tx.engine_mark())
        self.engine_clock.resume(mark)
        self._trust_files()
        self.store.read(self.keys.load)
        self._take_over(mark)
        self.lag.start()
        self.loops.start()
        self.agent_server.start()
        self.web_server.start()
        self.enrolment.endpoint = self._advertised()
        gevent.spawn(self.ledger.resume)
        logger.info(
            "master started",
            extra=log.fields(
                agents=self.agent_server.endpoint, web=self.web_server.endpoint, data=str(self.data_dir),
                advertised=self.enrolment.endpoint, runs_held=len(self.leases), agents_known=len(self.fleet),
            ),
        )  # fmt: skip

    def _trust_files(self) -> None:
        import_trusted(self.store, self.data_dir / "keys" / TRUSTED_FILE)
        web = TrustedKey(public_key=self.web_keys.public_text, role=Role.WEB, name="web")
        known = {key.public_key for key in self.store.read(lambda tx: tx.list_keys())}
        if web.public_key not in known:
            self.store.write(lambda tx: tx.save_key(web))
        ensure_admin_token(self.store, self.data_dir / ADMIN_TOKEN_FILE, now_ms=self.clock.wall_ms())

    def _take_over(self, mark: tuple[float, int]) -> None:
        """Fill the memory from the store; every lease and every silence begins anew."""

        def held(tx: ReadTx) -> tuple[list[Agent], list[tuple[Run, float]]]:
            tasks = {}
            runs = tx.runs_held()
            for run in runs:
                if run.task_id is not None and run.task_id not in tasks:
                    tasks[run.task_id] = tx.get_task(run.task_id)
            lost_after = {task_id: task.lost_after_s for task_id, task in tasks.items() if task is not None}
            return tx.list_agents(), [(run, lost_after.get(run.task_id or "", 0.0)) for run in runs]

        agents, runs = self.store.read(held)
        now_s = self.engine_clock.now_s()
        silent = {run.agent_id for run, _ in runs if run.silent_since_ms is not None and run.agent_id is not None}
        self.agents.take_over(agents, silent=silent, now_s=now_s, last_commit_ms=mark[1])
        self.leases.load(runs, now_s=now_s)

    def _advertised(self) -> str:
        """The endpoint that join tokens name: as set, else this machine's address where it listens everywhere."""
        if self._advertise:
            return f"tcp://{self._advertise}"
        host, _, port = self.agent_server.endpoint.removeprefix("tcp://").rpartition(":")
        if host in ("0.0.0.0", "[::]", "*"):
            host = _own_address()
        return f"tcp://{host}:{port}"

    def stop(self) -> None:
        """Answer what waits, close the doors, finish what is queued, close the stores. May be called twice."""
        if not self._started:
            return
        self._started = False
        logger.info("master stops")
        self._stopping.set()
        self.pulls.close()
        self.feed.close()
        self.waits.wake_all()
        self._say_farewell()
        self.agent_server.stop()
        self.web_server.stop()
        self.ledger.close()
        self.loops.stop()
        self.lag.stop()
        self.store.close()
        self.output.close()

    def _say_farewell(self) -> None:
        servers = (self.agent_server, self.web_server)
        for _ in range(_FAREWELL_TURNS):
            waited = any(server.metrics.pending for server in servers)
            if waited:
                gevent.sleep(_FAREWELL_TURN_S)
            if not any(server.metrics.pending for server in servers):
                if waited:
                    gevent.sleep(_FAREWELL_TURN_S)
                return


def _own_address() -> str:
    """The address by which this machine would reach others; its name when it has no route."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # sends nothing: a datagram socket only picks its way
            address: str = probe.getsockname()[0]
        except OSError:
            return socket.gethostname()
    return address
