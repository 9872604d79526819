"""Jobs on other machines by the user's ``ssh``: one a host, whose log is copied here as it grows."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import msgspec

from cs336_tui.config.spec import CellSpec
from cs336_tui.events.environment import Environment
from cs336_tui.runner.jobs.choice import LaunchChoice, LauncherName
from cs336_tui.runner.jobs.folder import log_path, lost_path, read_shared
from cs336_tui.runner.jobs.job import JobCell, JobRequest, JobStatus, LaunchError, Place
from cs336_tui.runner.jobs.ssh_host import ENDS_LATER, LOOK_EVERY_S, Host, JobThere
from cs336_tui.runner.jobs.ssh_scripts import ROOT_IN_WORDS, script_to_start
from cs336_tui.runner.jobs.ssh_shell import Unreachable
from cs336_tui.stats.quantities import counted


class SshLauncher:
    """Runs jobs on hosts where cs336-tui is installed. A job is named ``HOST:SESSION/JOB``. A host that failed gets no
    further ones."""

    name: LauncherName = "ssh"

    def __init__(self, choice: LaunchChoice, *, look_every_s: float = LOOK_EVERY_S) -> None:
        for host in choice.hosts:
            if not host or host.startswith("-") or any(each.isspace() for each in host):
                raise LaunchError(f"--host {host!r}: expected a name that ssh knows, such as gpu1 or me@10.0.0.7")
        if not choice.hosts:
            raise LaunchError("--launcher ssh needs --host NAME, or several with commas")
        self._give_up_s = choice.host_timeout_s
        self._hosts = {name: Host(name, self._give_up_s, look_every_s) for name in choice.hosts}
        self._commands = dict(choice.remote_commands)
        self._has_jobs = False
        self._asked_lanes = choice.lanes or 0

    def prepare(self, cells: Sequence[JobCell]) -> Sequence[Place]:
        """The hosts, all asked at once. Before there are jobs, each must be of use: raises `LaunchError` that names
        those which are not."""
        specs = [cell.spec for cell in cells]
        with ThreadPoolExecutor(len(self._hosts)) as pool:
            found = list(pool.map(lambda host: self._place(host, specs), list(self._hosts.values())))
        problems = [place.problem for place in found if place.problem]
        if problems and not self._has_jobs:
            raise LaunchError("; ".join(problems))
        return found

    def _place(self, host: Host, specs: Sequence[CellSpec]) -> Place:
        if host.failed:
            return Place(host.name, problem=host.failed)
        try:
            facts = host.examine(self._commands.get(host.name, self._commands.get("")), specs)
        except LaunchError as error:
            return Place(host.name, problem=str(error))
        return Place(host.name, self._lanes(facts.environment, specs), facts.environment)

    def _lanes(self, environment: Environment, specs: Sequence[CellSpec]) -> int:
        """The lanes of a host as they count for its share: those asked for, else its GPUs, or the threads' worth of its
        cores."""
        gpus = sum(device.name.startswith("cuda") for device in environment.devices)
        on_gpus = gpus and any(spec.device.startswith("cuda") for spec in specs)
        return self._asked_lanes or (gpus if on_gpus else environment.cpu_count)

    def plan(self, requests: Sequence[JobRequest], folder: Path) -> str:
        return "\n".join(line for request in requests for line in self._plan(request, folder))

    def _plan(self, request: JobRequest, folder: Path) -> Iterator[str]:
        facts = self._hosts[request.machine].facts
        command = facts.command if facts else "cs336-tui"
        lanes = "a lane for each device" if request.lanes == 0 else counted(request.lanes, "lane")
        yield f"ssh {request.machine} {command} run-job {ROOT_IN_WORDS}/{folder.stem}/{request.job}.json"
        yield f"  {counted(len(request.cells), 'cell')} in {lanes}, its log copied to {log_path(folder, request.job)}"
        yield from (f"  cell {cell.cell + 1}: {cell.spec.heading}" for cell in request.cells)

    def submit(self, requests: Sequence[JobRequest], folder: Path) -> Sequence[str]:
        started: list[str] = []
        with ThreadPoolExecutor(len(self._hosts)) as pool:
            list(pool.map(partial(self._tidy, folder.stem), self._hosts.values()))
        try:
            for request in requests:
                started.append(self._start(request, folder))
        except BaseException:
            self.cancel(started)
            raise
        return started

    def _tidy(self, session: str, host: Host) -> None:
        if host.outage is None and not host.failed:
            with contextlib.suppress(Unreachable):  # then it gets no job, and is tidied before its next
                host.tidy(session)

    def _start(self, request: JobRequest, folder: Path) -> str:
        """Start a job on its host, or if that is gone since it was checked, on another one."""
        problems: list[str] = []
        path = f"{folder.stem}/{request.job}"
        log = log_path(folder, request.job)
        for old in (log, JobThere.end_of(log), lost_path(folder, request.job)):  # of one that nobody recorded
            old.unlink(missing_ok=True)
        for host in sorted(self._hosts.values(), key=lambda each: (each.name != request.machine, each.last_job)):
            place = self._place(host, [cell.spec for cell in request.cells])
            if place.problem or host.facts is None:
                problems.append(place.problem)
                continue
            text = msgspec.json.encode(msgspec.structs.replace(request, machine=host.name)).decode()
            try:
                start = script_to_start(path, text, str(Path.cwd()), host.facts.command, host.last_job)
                answer = host.run(start, 60.0)
            except Unreachable as error:  # it may have started
                host.failed = f"host {host.name}: {error}"
                host.give_up(host.look_after(path, log), host.failed)
                problems.append(host.failed)
                continue
            if not answer.split():
                problems.append(f"host {host.name}: the job did not start; is its disk full?")
                continue
            self._has_jobs = True
            host.look_after(path, log)
            return f"{host.name}:{path}"
        raise LaunchError("; ".join(problems))

    def where(self, id: str) -> str:
        return self._of(id)[0].name

    def statuses(self, ids: Sequence[str]) -> Mapping[str, JobStatus]:
        found: dict[str, JobStatus] = {}
        for id in ids:
            host, job = self._of(id)
            if status := host.status(job):
                if status.elsewhere:
                    host.failed = host.failed or status.reason
                    left = any(each.failed is None for each in self._hosts.values())
                    status = status._replace(elsewhere=left)
                found[id] = status
        return found

    def cancel(self, ids: Sequence[str]) -> None:
        """Jobs of hosts that cannot be reached are over, too, as far as this session is concerned."""
        with ThreadPoolExecutor(max(len(ids), 1)) as pool:
            problems = [problem for problem in pool.map(self._cancel, ids) if problem]
            for session in {self._of(id)[1].path.partition("/")[0] for id in ids}:
                list(pool.map(partial(self._tidy, session), self._hosts.values()))
        if problems:
            raise LaunchError("; ".join(problems))

    def _cancel(self, id: str) -> str | None:
        host, job = self._of(id)
        try:
            host.stop([job])
        except Unreachable as error:
            host.give_up(job, f"cancelled; {host.name} cannot be reached: {error}", "cancelled")
            return f"host {host.name} cannot be reached ({error}): {ENDS_LATER}"
        return None

    def read(self, id: str, log: Path, offset: int) -> bytes:
        host, job = self._of(id)
        if job.log is None:
            host.look_after(job.path, log)
        if job.problem:
            raise LaunchError(job.problem)
        return read_shared(log, offset)

    def _of(self, id: str) -> tuple[Host, JobThere]:
        self._has_jobs = True
        name = next((name for name in self._hosts if id.startswith(f"{name}:")), id.partition(":")[0])
        if name not in self._hosts:  # of an earlier choice of hosts
            self._hosts[name] = Host(name, self._give_up_s)
            self._hosts[name].failed = "it is not among the hosts"
        return self._hosts[name], self._hosts[name].look_after(id.removeprefix(f"{name}:"))

    def close(self) -> None:
        with ThreadPoolExecutor(len(self._hosts)) as pool:
            list(pool.map(Host.close, self._hosts.values()))
