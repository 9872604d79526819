"""NVML calls that block: in a stand-in library under the real pynvml, and in a real shared library."""

import os
import queue
import shutil
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from cs336_tui.events.environment import GpuSample
from cs336_tui.events.events import CellFinished, DeviceSampled
from cs336_tui.runner.device import nvml as nvml_module
from cs336_tui.runner.device.gpu import RETRY_S, GpuMonitor
from cs336_tui.runner.device.nvml import nvml_report
from cs336_tui.runner.device.sampler import DeviceSampler
from cs336_tui.session.log import LogReader
from tests.commands import COMMAND, SMALL, bench
from tests.runner.device.conftest import Install
from tests.runner.device.fake_nvml import FakeGpu, FakeNvmlLibrary
from tests.runner.device.test_gpu import following
from tests.runner.device.test_sampler import gpu, until
from tests.terminal import Terminal

NEVER = 3600.0
BARE = {"uuid", "name"}


class BlockingLibrary(FakeNvmlLibrary):
    """Calls of the symbols in `blocked` do not return before `go_on` is set."""

    def __init__(self, *gpus: FakeGpu) -> None:
        super().__init__(*gpus)
        self.blocked: set[str] = set()
        self.go_on = threading.Event()

    def __getattr__(self, symbol: str) -> Callable[..., Any]:
        function = super().__getattr__(symbol)

        def blocking(*args: Any) -> Any:
            if symbol in self.blocked:
                self.go_on.wait(60)
            return function(*args)

        return blocking


@pytest.fixture
def library(install_nvml: Install, monkeypatch: pytest.MonkeyPatch) -> Iterator[BlockingLibrary]:
    monkeypatch.setattr(nvml_module, "ANSWER_S", 0.1)
    found = BlockingLibrary(FakeGpu("GPU-a", compute=[(1, 1), (os.getpid(), 1)]), FakeGpu("GPU-b"))
    install_nvml(found)
    yield found
    found.go_on.set()


def stuck_threads() -> int:
    return sum(thread.name == "nvml" for thread in threading.enumerate())


def known(sample: GpuSample | None) -> set[str]:
    assert sample is not None
    return {name for name in GpuSample.__struct_fields__ if getattr(sample, name) is not None}


SYMBOLS = [
    *("nvmlInitWithFlags", "nvmlDeviceGetHandleByUUID", "nvmlDeviceGetUUID", "nvmlDeviceGetName"),
    *("nvmlDeviceGetMemoryInfo_v2", "nvmlDeviceGetUtilizationRates", "nvmlDeviceGetPowerUsage"),
    *("nvmlDeviceGetClockInfo", "nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetTotalEnergyConsumption"),
    *("nvmlDeviceGetTemperature", "nvmlDeviceGetEnforcedPowerLimit", "nvmlDeviceGetPersistenceMode"),
    *("nvmlDeviceGetComputeRunningProcesses_v3", "nvmlDeviceGetGraphicsRunningProcesses_v3"),
]


@pytest.mark.parametrize("symbol", SYMBOLS)
def test_any_call_that_blocks_costs_a_moment_and_then_nothing_until_it_answers(
    library: BlockingLibrary, symbol: str
) -> None:
    before = stuck_threads()
    monitor = following("GPU-a")
    library.blocked = {symbol}
    for now in range(5):  # the second and later ones ask nothing while the first is out
        began = time.monotonic()
        sample, why = monitor.sample(float(now))
        assert time.monotonic() - began < (5.0 if now == 0 else 0.09)
        assert why.startswith("NVML has not answered nvml")
        assert "\n" not in why
    assert sample is None or known(sample) == BARE
    assert stuck_threads() <= before + 1
    library.blocked.clear()
    library.go_on.set()
    deadline = time.monotonic() + 20
    now = 5 + RETRY_S
    while why is not None and time.monotonic() < deadline:
        sample, why = monitor.sample(now)
        now += 0.5
        time.sleep(0.01)
    assert why is None
    assert len(known(sample)) == len(GpuSample.__struct_fields__)
    monitor.close()
    assert library.open == 0


def test_one_field_that_blocks_each_time_costs_that_field_only(library: BlockingLibrary) -> None:
    monitor = following("GPU-a")
    whole, _ = monitor.sample(0.0)

    library.go_on = Slow(0.2)  # twice the patience
    library.blocked = {"nvmlDeviceGetPowerUsage"}
    monitor.sample(1.0)
    while monitor._nvml is not None and monitor._nvml.is_stuck:
        time.sleep(0.01)
    for now in (2.0, 3.0):
        sample, why = monitor.sample(now)
        assert known(whole) - known(sample) == {"power_w"}
        assert why == "NVML has not answered nvmlDeviceGetPowerUsage within 0.1 s"
    library.blocked.clear()
    sample, why = monitor.sample(1.0 + RETRY_S)
    assert (known(sample), why) == (known(whole), None)
    monitor.close()


def test_many_slow_calls_take_no_longer_together_than_one_may(library: BlockingLibrary) -> None:
    monitor = following("GPU-a")
    monitor.sample(0.0)
    library.go_on, library.blocked = Slow(0.06), set(SYMBOLS)
    began = time.monotonic()
    sample, why = monitor.sample(10.0)
    assert time.monotonic() - began < 0.3, "eleven calls of 0.06 s"
    assert sample is not None
    assert why is not None
    monitor.close()


class Slow(threading.Event):
    """Lets each call through after some seconds."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self._seconds = seconds

    def wait(self, _timeout: float | None = None) -> bool:
        return super().wait(self._seconds)


def test_another_gpu_is_followed_while_one_does_not_answer(library: BlockingLibrary) -> None:
    before = stuck_threads()
    monitor = following("GPU-a")
    library.blocked = {"nvmlDeviceGetHandleByUUID"}
    assert monitor.sample(0.0)[0] is None
    library.blocked.clear()
    for now in range(1, 4):
        monitor.follow("GPU-b")
        sample, why = monitor.sample(float(now))
        assert (sample.uuid, why) == ("GPU-b", None)
        monitor.follow("GPU-a")
        assert monitor.sample(float(now))[0] is None
    assert stuck_threads() <= before + 2
    library.go_on.set()
    monitor.close()


def test_an_opening_that_takes_long_is_not_begun_again(library: BlockingLibrary) -> None:
    """Without persistence mode opening takes seconds each time."""
    library.blocked = {"nvmlInitWithFlags"}
    monitor = GpuMonitor()
    assert monitor.sample(0.0)[0] is None
    library.go_on.set()
    deadline = time.monotonic() + 20
    while (sample := monitor.sample(0.5)[0]) is None and time.monotonic() < deadline:
        time.sleep(0.01)
    assert sample is not None
    assert library.calls["nvmlInitWithFlags"] == 1
    monitor.close()
    assert library.open == 0


@pytest.mark.parametrize("answers_again", [True, False])
def test_host_samples_go_on_while_nvml_is_silent_and_values_come_back_if_it_answers_again(
    library: BlockingLibrary, answers_again: bool
) -> None:
    events: queue.Queue[DeviceSampled] = queue.Queue()
    sampler = DeviceSampler(events.put, interval_s=0.02)
    sampler.point(gpu("GPU-a"), os.getpid())
    sampler.start()
    until(events, lambda event: event.gpu)
    library.blocked = {"nvmlDeviceGetMemoryInfo_v2"}
    until(events, lambda event: event.why)
    blind = [events.get(timeout=20) for _ in range(10)]
    assert all(event.host.child_rss_bytes and event.gpu and event.gpu.memory_used_bytes is None for event in blind)
    assert blind[-1].at - blind[0].at < 5
    assert {event.why for event in blind} == {"NVML has not answered nvmlDeviceGetMemoryInfo within 0.1 s"}
    if answers_again:
        library.blocked.clear()
        library.go_on.set()
        until(events, lambda event: event.gpu and event.gpu.utilisation is not None)
    sampler.stop(timeout_s=10)
    assert "device-sampler" not in {thread.name for thread in threading.enumerate()}
    assert library.open == (0 if answers_again else 1)


@pytest.mark.parametrize("symbol", ["nvmlInitWithFlags", "nvmlSystemGetDriverVersion", "nvmlDeviceGetCount_v2"])
def test_a_report_says_what_was_not_answered(library: BlockingLibrary, symbol: str) -> None:
    library.blocked = {symbol}
    began = time.monotonic()
    report = nvml_report()
    assert time.monotonic() - began < 5
    assert report.why.startswith("NVML has not answered nvml")
    assert (report.driver is None) == (symbol != "nvmlDeviceGetCount_v2")


def test_a_shutdown_that_blocks_does_not_cost_the_report(library: BlockingLibrary) -> None:
    library.blocked = {"nvmlShutdown"}
    assert [gpu.uuid for gpu in nvml_report().gpus] == ["GPU-a", "GPU-b"]


# The installed command over a library whose every call but one blocks for good.


@pytest.fixture(scope="module")
def silent_driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a libnvidia-ml.so.1 that never answers."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("needs a C compiler")
    folder = tmp_path_factory.mktemp("driver")
    source = folder / "nvml.c"
    source.write_text(
        "#include <unistd.h>\nint nvmlInitWithFlags(unsigned flags) { for (;;) pause(); }\n"
        'const char *nvmlErrorString(int code) { return "an error"; }\n'
    )
    subprocess.run([compiler, "-shared", "-fPIC", "-o", str(folder / "libnvidia-ml.so.1"), str(source)], check=True)
    return folder


SILENT = "NVML has not answered nvmlInit"


def test_doctor_names_a_driver_that_does_not_answer(silent_driver: Path, tmp_path: Path) -> None:
    env = os.environ | {"LD_LIBRARY_PATH": str(silent_driver)}
    done = subprocess.run([COMMAND, "doctor"], cwd=tmp_path, env=env, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0
    assert SILENT in done.stdout.partition("missing or odd")[2]
    assert "nothing is missing" not in done.stdout


def test_bench_goes_on_without_a_driver_that_does_not_answer_and_says_so(
    silent_driver: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LD_LIBRARY_PATH", str(silent_driver))
    done = bench(*SMALL, "--pass", "forward,inference", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count(SILENT) == 1
    (log,) = (tmp_path / "sessions").glob("*.jsonl")
    assert [event.status for event in LogReader(log) if isinstance(event, CellFinished)] == ["ok", "ok"]


def test_the_app_paints_runs_and_ends_with_a_driver_that_does_not_answer(silent_driver: Path, tmp_path: Path) -> None:
    folders = {name: str(tmp_path / name) for name in ("XDG_CONFIG_HOME", "XDG_DATA_HOME")}
    words = [COMMAND, "--session-dir", str(tmp_path / "sessions"), *SMALL, "--pass", "forward"]
    app = Terminal(words, columns=120, rows=40, env=folders | {"LD_LIBRARY_PATH": str(silent_driver)})
    try:
        app.until("torch")
        app.send("r")
        app.until("✓ ok")
        app.until("NVML has")
        app.send("q")
        assert app.wait() == 0
    finally:
        app.close()
