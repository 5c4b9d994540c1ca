"""The leader's side: opening workers, hearing them, and telling them apart by their kind of GPU."""

from __future__ import annotations

import logging
import threading
import time

from tunekit.cache import Holder, Store
from tunekit.errors import DeviceError, StoreError, TuneError, TunekitError
from tunekit.fleet.crews import Crew
from tunekit.fleet.identity import made_by
from tunekit.fleet.messages import Broke, Gone, Hello, Message, Refused, Stop, Stopped, Tried
from tunekit.fleet.runner import FleetRunner, Ground, MeasuredElsewhere
from tunekit.fleet.squad import Squad
from tunekit.fleet.watching import ALONE_S, LOOK_S, NOTE_S, Watch
from tunekit.trial import Origin

_log = logging.getLogger(__name__)

MOST_DEATHS = 5
"""Workers that may die with no trial in between before none is started any more: or as many as
there are, for they may be of one host, or of one server that was started again."""

STOP_S = 5.0
"""How long workers may take to give their leases back."""


def is_on_server(place: str) -> bool:
    """Say whether a store is where every host can reach it."""
    return "://" in place and not place.startswith("sqlite")


class Lead:
    """The workers of a run, from their first word to their last."""

    def __init__(self, crew: Crew, place: str, *, ground: Ground | None = None) -> None:
        """Start them. `ground` is what they replay, if they do; `place` is where the store is."""
        self._crew = crew
        self._place = place
        self._ground = ground
        self._store: Store | None = None
        self._squads: dict[str, Squad] = {}
        self._hellos: dict[int, Hello] = {}
        self._first: dict[str, Hello] = {}
        self._known = threading.Condition()
        self._starting = crew.planned
        self._heard_of: set[int] = set()
        """Workers that are no longer starting."""
        self._stopping = False
        self._deaths = 0
        self._most_deaths = max(MOST_DEATHS, self._starting)
        self._refusals: dict[int, str] = {}
        """What workers said that are going to end because of the server."""
        self._reason: TunekitError | None = None
        self._watch = Watch()
        self._ended = threading.Event()
        self._alone_since: float | None = None
        self._made_by: dict[Origin, dict[str, str]] = {}
        crew.start(self._hear)

    def runners(self, patience_s: float) -> list[FleetRunner]:
        """Wait for the workers and return a runner for each kind of GPU they have.

        It waits for the first as long as it takes, and for the others so many seconds more.

        Raises:
            TunekitError: none of them can work, and why.
        """
        with self._known:
            while not self._known.wait_for(lambda: self._hellos or not self._starting, NOTE_S):
                self._note_waiting("no worker has started yet")
            self._known.wait_for(lambda: not self._starting, patience_s)
            if not self._hellos:
                raise self._reason or TuneError("no worker could be started")
            return [
                FleetRunner(self._squads[slug], self._ground_of(hello), self.close)
                for slug, hello in self._first.items()
            ]

    def attach(self, store: Store) -> None:
        """Say through which store the leases of workers that die are given back."""
        self._store = store
        threading.Thread(target=self._attend, name="tunekit-watch", daemon=True).start()

    def close(self) -> None:
        """Have the workers give back what they have, and end them."""
        with self._known:
            if self._stopping:
                return
            self._stopping = True
            self._ended.set()
            for squad in self._squads.values():
                squad.fail(TuneError("the run was ended"))
            for worker in list(self._hellos):
                self._crew.send(worker, Stop())
            self._known.wait_for(lambda: not self._hellos, STOP_S)
        self._crew.close()

    def _hear(self, worker: int, message: Message) -> None:
        if isinstance(message, Tried):
            self._deaths = 0
        if isinstance(message, Hello):
            self._enlist(worker, message)
        elif isinstance(message, Refused):
            self._dismiss(worker, message.error)
        elif isinstance(message, Broke):
            self._break(message.traceback)
        elif isinstance(message, (Stopped, Gone)):
            why = self._refusals.pop(worker, None)
            self._bury(worker, message if why is None else Gone(why))
        elif worker in self._hellos:
            self._squads[self._hellos[worker].device.slug].hear(worker, message)

    def _enlist(self, worker: int, hello: Hello) -> None:
        """Take in a worker whose results are comparable with the others'."""
        why = self._unfit(hello)
        with self._known:
            self._note_start(worker)
            slug = hello.device.slug
            if why is None:
                self._hellos[worker] = hello
                self._first.setdefault(slug, hello)
                if slug not in self._squads:
                    self._squads[slug] = Squad(self._crew.send, self._release)
                self._squads[slug].join(worker, hello)
            self._known.notify_all()
        if why is not None:
            self._reason = self._reason or why
            _log.warning("a worker is left out: %s", why)
            self._crew.send(worker, Stop())

    def _unfit(self, hello: Hello) -> TunekitError | None:
        where = hello.holder.host.partition(" ")[0]
        if not is_on_server(self._place) and hello.holder.host != Holder.here().host:
            return StoreError(
                f"a worker on {where}, which is another host, cannot share the file"
                f" {self._place}: keep the cache on a server, --cache postgresql://…"
            )
        if hello.origin not in self._made_by:  # who runs what is installed here can say it too
            local = self._crew.is_local
            self._made_by[hello.origin] = dict(hello.made_by) if local else made_by(hello.origin)
        here = self._made_by[hello.origin]
        for name in sorted(here.keys() | hello.made_by.keys()):
            mine, theirs = here.get(name), hello.made_by.get(name)
            if mine != theirs:
                return DeviceError(
                    f"{name} is {theirs} on {where} and {mine} here: install the same on every host"
                )
        return None

    def _dismiss(self, worker: int, error: TunekitError) -> None:
        """Go on without a worker that says that it cannot work.

        A server may be there again soon, as after a restart: then the worker counts as one that
        died, once its process has let go of the GPU.
        """
        works = worker in self._hellos
        if works and isinstance(error, StoreError) and is_on_server(self._place):
            self._refusals[worker] = f"failed: {error}"
            return
        self._reason = self._reason or error
        if works and not self._stopping:
            _log.warning("a worker has ended: %s", error)
        self._bury(worker, Gone(str(error)), replace=False)

    def _bury(self, worker: int, message: Stopped | Gone, *, replace: bool = True) -> None:
        """Have others go on where a worker has ended."""
        with self._known:
            hello = self._hellos.pop(worker, None)
            unexpected = hello is not None or worker not in self._heard_of
            self._note_start(worker)
            ended = self._stopping or isinstance(message, Stopped) or not unexpected
            again = replace and not ended and self._may_replace(message)
            self._starting += again
            self._known.notify_all()
        if ended:
            return
        if hello is not None:
            self._squads[hello.device.slug].leave(worker)
        if again:
            self._crew.replace(worker)
        self._check()

    def _may_replace(self, message: Stopped | Gone) -> bool:
        """Say whether a worker is started where one has died, and tell what happened."""
        how = message.how if isinstance(message, Gone) else ""
        self._deaths += 1
        if self._deaths > self._most_deaths:
            self._reason = TuneError(
                f"{self._deaths} workers died with no trial in between, the last one {how}"
            )
            return False
        _log.warning("a worker %s: its keys go to others, and another one is started", how)
        return True

    def _attend(self) -> None:
        while not self._ended.wait(LOOK_S):
            self.look(time.monotonic())

    def look(self, now: float) -> None:
        """See to workers that do not answer, and to there being none, at a time in seconds."""
        self._end_stalled(now)
        self._check()
        with self._known:
            alone = any(not squad.size for squad in self._squads.values()) and self._starting > 0
            if not alone or self._stopping:
                self._alone_since = None
                return
            if self._alone_since is None:
                self._alone_since = now
                self._note_waiting("no worker is left")
            if now - self._alone_since < ALONE_S:
                return
            why = TuneError(
                f"no worker has come in {ALONE_S / 60:.0f} minutes since the last one ended:"
                f" {self._crew.lacking()}; the same command does only the rest"
            )
            for squad in self._squads.values():
                if not squad.size:
                    squad.fail(why)

    def _end_stalled(self, now: float) -> None:
        """End workers that have let their leases run out: stopped, or stuck in a driver's call."""
        if self._store is None:
            return
        leasing = {w: h for s in list(self._squads.values()) for w, h in s.leasing().items()}
        try:
            holding = {lease.holder.name for lease in self._store.leases().values()}
        except StoreError:  # whoever needs the store says so
            return
        for worker in self._watch.stalled(leasing, holding, now):
            _log.warning("%s has not renewed its leases: it is ended", leasing[worker])
            self._crew.end(worker)

    def _note_waiting(self, what: str) -> None:
        _log.warning(
            "%s: waiting for one of %d (%s); Ctrl-C ends the run",
            what, self._starting, self._crew.lacking(),
        )  # fmt: skip

    def _note_start(self, worker: int) -> None:
        if worker not in self._heard_of:
            self._heard_of.add(worker)
            self._starting = max(0, self._starting - 1)

    def _check(self) -> None:
        """End the run of a kind of GPU if nobody is left to go on with it."""
        with self._known:
            if self._starting:
                return
            for squad in self._squads.values():
                if not squad.size:
                    squad.fail(self._reason or TuneError("all workers have ended"))

    def _break(self, traceback: str) -> None:
        error = RuntimeError(f"in a worker:\n{traceback}")
        for squad in self._squads.values():
            squad.fail(error)
        with self._known:
            self._reason = self._reason or TuneError(f"a worker failed: {traceback[-500:]}")
            self._starting = 0
            self._known.notify_all()

    def _release(self, holder: Holder) -> None:
        if self._store is None:
            return
        try:
            self._store.release(holder)
        except StoreError as problem:  # they end by themselves
            _log.warning("the leases of a worker that has ended are not given back: %s", problem)

    def _ground_of(self, hello: Hello) -> Ground:
        return self._ground or MeasuredElsewhere(hello.device, hello.driver, hello.made_by)
