"""The tiers of tests, as a pytest plugin: `--tier NAME` runs the tests of one tier, on all cores
where that makes sense.

The tier `gate` is enforced: a test in it fails if it starts a process, waits for more than
WAIT_S, or costs more than COST_S. The cost is the CPU time of this process, without imports, and
the time in which the event loop had nothing to do but wait. The wall time would depend on what
else the machine does. What a test waits for comes later on a busy machine, so more cost is
allowed there; and on a slower machine than the one on which the limit was set.
"""

import asyncio
import builtins
import os
import selectors
import sys
import threading
import time
from collections.abc import Generator
from multiprocessing.process import BaseProcess
from typing import Any

import pytest
from hypothesis import find, settings
from hypothesis import strategies as st

from seer_sgl.sim.clock import VirtualLoop

# The markers of each tier. A test belongs to the first tier that it has a marker of.
TIERS: dict[str, tuple[str, ...]] = {
    "long": ("long",),
    "smoke": ("smoke",),
    "engines": ("own_engines", "shared_engines"),
    "process": ("process",),
}
GATE = "gate"  # tests without any of these markers
# How pytest-xdist spreads the tests of a tier over the cores. Those of other tiers run one by one.
SPREAD = {GATE: "worksteal", "process": "loadfile"}
MOST_WORKERS = 8
WAIT_S = 0.5  # the longest single wait of a test in the gate
# The cost from which a test of the gate fails, on a machine that does nothing else. That is twice
# what a test may cost: the same code takes up to twice as long on a core that others share.
COST_S = 4.0
LOOP_S = 0.02  # CPU time of `_loop` on the machine on which COST_S was set
STARTS = (
    "subprocess.Popen",
    "os.fork",
    "os.forkpty",
    "os.posix_spawn",
    "os.system",
)  # audit events


def tier_of(item: pytest.Item) -> str:
    """Returns the tier of a test."""
    for tier, markers in TIERS.items():
        if any(item.get_closest_marker(marker) for marker in markers):
            return tier
    return GATE


def slowness() -> float:
    """Returns the factor by which work costs more than on a quiet, usual machine, at least 1.

    That is how many processes want each core, or how much longer a loop takes, whichever is more.
    """
    return max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1), _loop() / LOOP_S)


def _loop() -> float:
    """Returns the CPU time of a fixed amount of work in Python, in s."""
    begun, sums = time.process_time(), dict[int, int]()
    for number in range(200_000):
        sums[number & 1023] = sums.get(number & 1023, 0) + number
    return time.process_time() - begun


class Record:
    """What one test did: the processes that it started, its longest wait and its cost, in s."""

    def __init__(self) -> None:
        self.processes: list[str] = []
        self.longest_s = 0.0
        self.waited_s = 0.0
        self.cpu_s = 0.0

    def waited(self, seconds: float) -> None:
        """The main thread had nothing to do for so long."""
        self.longest_s = max(self.longest_s, seconds)
        self.waited_s += seconds

    def breach(self) -> str | None:
        """Returns why the test does not belong to the gate; None if it does."""
        if self.processes:
            return f"starts a process ({self.processes[0]})"
        if self.longest_s > WAIT_S:
            return f"waits {self.longest_s:.2f} s of real time (limit {WAIT_S} s)"
        cost_s = self.cpu_s + self.waited_s
        if cost_s > COST_S and cost_s > (limit := COST_S * slowness()):
            return (
                f"takes {self.cpu_s:.2f} s of CPU time and waits {self.waited_s:.2f} s "
                f"(limit {limit:.1f} s)"
            )
        return None


class Watch:
    """Records what happens in this process between `install` and `remove`."""

    def __init__(self) -> None:
        self.record = Record()
        self._patch = pytest.MonkeyPatch()
        self._active = False
        self._imports = 0  # nested imports under way in the main thread
        sys.addaudithook(self._audit)  # a hook cannot be removed

    def install(self) -> None:
        """Begins to record."""
        self._active = True
        patch, select, start = self._patch, selectors.EpollSelector.select, BaseProcess.start
        sleep, asleep, load = time.sleep, asyncio.sleep, builtins.__import__

        def selecting(selector: selectors.EpollSelector, timeout: float | None = None) -> Any:
            begun = time.process_time()
            ready = select(selector, timeout)
            if timeout and not ready and _in_main_thread():
                computed = time.process_time() - begun  # by other threads
                self.record.waited(max(0.0, timeout - computed))
            return ready

        def sleeping(seconds: float) -> None:
            sleep(seconds)
            if _in_main_thread():
                self.record.waited(seconds)

        async def sleeping_long(seconds: float, result: Any) -> Any:
            loop, begun = asyncio.get_running_loop(), time.monotonic()
            before_s = _jumped_s(loop)
            await asleep(seconds)
            if not isinstance(loop, VirtualLoop) and time.monotonic() - begun > WAIT_S:
                real_s = seconds - (_jumped_s(loop) - before_s)
                self.record.longest_s = max(self.record.longest_s, real_s)
            return result

        def sleeping_async(seconds: float, result: Any = None) -> Any:
            by_a_test = sys._getframe(1).f_globals["__name__"].startswith("test")
            if seconds > WAIT_S and by_a_test and _in_main_thread():
                return sleeping_long(seconds, result)
            return asleep(seconds, result)

        def starting(process: BaseProcess) -> None:
            self.record.processes.append(process.name)
            start(process)

        def importing(*args: Any, **kwargs: Any) -> Any:
            return self._imported(load, args, kwargs)

        patch.setattr(selectors.EpollSelector, "select", selecting)
        patch.setattr(time, "sleep", sleeping)
        patch.setattr(asyncio, "sleep", sleeping_async)
        patch.setattr(BaseProcess, "start", starting)
        patch.setattr(builtins, "__import__", importing)

    def remove(self) -> None:
        """Ends recording."""
        self._active = False
        self._patch.undo()

    def _audit(self, event: str, arguments: tuple[Any, ...]) -> None:
        # A library that is imported may look around: matplotlib asks for the fonts.
        if self._active and event in STARTS and not self._imports:
            self.record.processes.append(str(arguments[0]) if arguments else event)

    def _imported(self, load: Any, args: Any, kwargs: Any) -> Any:
        """Imports a module, free of charge: the first test that needs it would pay for all."""
        if not _in_main_thread():
            return load(*args, **kwargs)
        begun = time.process_time()
        self._imports += 1
        try:
            return load(*args, **kwargs)
        finally:
            self._imports -= 1
            if not self._imports:
                self.record.cpu_s -= time.process_time() - begun


def _jumped_s(loop: asyncio.AbstractEventLoop) -> float:
    """Returns the time by which a test has advanced the clock of a loop (`waiting.jump`)."""
    return float(getattr(loop, "jumped_s", 0.0))


def _in_main_thread() -> bool:
    return threading.get_ident() == threading.main_thread().ident


class Enforcement:
    """Fails the tests that do not belong to the gate."""

    def __init__(self) -> None:
        self._watch = Watch()

    def pytest_sessionstart(self) -> None:
        """The tests begin."""
        self._watch.install()

    def pytest_collection_finish(self) -> None:
        """The tests are known.

        Hypothesis makes its tables of characters when it first draws a text, in every process and
        for more than a second: none of the tests is charged with it.
        """
        find(st.text(min_size=1), lambda _: True, settings=settings(database=None))

    def pytest_sessionfinish(self) -> None:
        """The tests have ended."""
        self._watch.remove()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_setup(self) -> Generator[None]:
        """A test begins. Its fixtures cost no CPU time, because other tests may share them."""
        self._watch.record = Record()
        yield

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Generator[None]:
        """Fails a test that has passed, if it or its fixtures broke a rule."""
        record, begun = self._watch.record, time.process_time()
        record.cpu_s = 0.0
        yield
        record.cpu_s += time.process_time() - begun
        if reason := record.breach():
            pytest.fail(
                f"{item.name} {reason}: make it smaller, or mark it `process`, which moves it "
                "from `make test` to `make test-engines`",
                pytrace=False,
            )


def pytest_addoption(parser: pytest.Parser) -> None:
    """Adds `--tier`."""
    parser.addoption(
        "--tier",
        choices=[GATE, *TIERS],
        help="run the tests of this tier; `gate` also fails tests that belong elsewhere",
    )


@pytest.hookimpl(tryfirst=True)
def pytest_cmdline_main(config: pytest.Config) -> None:
    """Sets xdist's options for the tier, unless the command line does. xdist reads them next."""
    spread = SPREAD.get(config.getoption("--tier") or "")
    unset = getattr(config.option, "numprocesses", 0) is None  # 0: without xdist
    if spread and unset and "PYTEST_XDIST_WORKER" not in os.environ:
        config.option.numprocesses = min(MOST_WORKERS, os.cpu_count() or 1)
        config.option.dist = spread


def pytest_configure(config: pytest.Config) -> None:
    """Enforces the rules of the gate."""
    if config.getoption("--tier") == GATE:
        config.pluginmanager.register(Enforcement(), "gate")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keeps the tests of the chosen tier."""
    if chosen := config.getoption("--tier"):
        config.hook.pytest_deselected(items=[item for item in items if tier_of(item) != chosen])
        items[:] = [item for item in items if tier_of(item) == chosen]
