"""The life of a pod, rehearsed on this machine: each hardship of a job of N hosts is a row of a table.

The hosts are processes with fake devices, and have no common disk but an emulated bucket. One job is killed and moved
from machine to machine, another is slow and loses its sandbox and its bucket. Each row compares losses and data with
those of an undisturbed job.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple

import jax
import numpy as np

from astra_jax.errors import AstraError
from astra_jax.mesh.watch import PATIENCE_VARIABLE
from astra_jax.metrics_file import metric_totals, read_metrics, whole_lines
from astra_jax.plan.plan import load_run_config
from astra_jax.rehearse.bucket import Bucket, served_bucket
from astra_jax.rehearse.job import hosts_of_job
from astra_jax.rehearse.small import BUCKET, mesh_overrides, meshes, shown, small_overrides, write_inputs
from astra_jax.rl.config import RLConfig
from sandbox.client import SandboxClient

_END_SECONDS: Final = 90.0
"""Seconds in which all hosts must have ended after one is lost: the others wait 30 of them for a sign of it."""
_RUN_SECONDS: Final = 900.0
_XLA_FLAGS: Final = "--xla_backend_optimization_level=0" + (
    " --xla_cpu_use_fusion_emitters=false" if jax.__version_info__ < (0, 11) else ""
)
"""Tiny programs compile for longer than they compute; up to JAX 0.10 half of that is in emitters of fusions."""
_DEVICES_PER_HOST: Final = 2  # at least: `hosts_of_job`
_STOP_AND_GO: Final = ((signal.SIGSTOP, 1.0), (signal.SIGCONT, 0.5))
"""Signals to a slow host, each with the seconds after it."""
_SLOW_STEPS: Final = 2
_TOLERANCE: Final = 1e-3
"""Relative difference of losses on another mesh, where sums have another order."""


class NotHeld(AstraError):
    """A row of a rehearsal does not hold; the message has the path of a log and its last line."""


class Step(NamedTuple):
    """Figures of a step by which jobs are compared."""

    loss: float
    grad_norm: float
    data: Any
    """Environments that were rolled out, or the number of tokens of the samples, whose lengths differ."""


class Row(NamedTuple):
    """A row of the table."""

    what: str
    held: bool
    seen: str
    seconds: float

    def __str__(self) -> str:
        return f"{self.what:<42} | {'yes' if self.held else 'NO':<4} | {self.seen:<80} | {self.seconds:7.1f}"


@dataclass
class Job:
    """The hosts of one command; a method raises NotHeld if they do otherwise than it says."""

    processes: list[subprocess.Popen[str]]
    logs: list[Path]
    run: Path
    """Folder of the run on the machine of the first host."""

    def steps(self) -> list[Step]:
        """Return the steps that are written down."""
        found = []
        for line in read_metrics(self.run / "metrics.jsonl"):
            episodes = whole_lines(self.run / "episodes" / f"step_{line['step']:06d}.jsonl")
            data = line.get("tokens", [json.loads(episode)["environment_id"] for episode in episodes])
            found.append(Step(line["loss"], line["grad_norm"], data))
        return found

    def require_running(self) -> None:
        """Raise NotHeld if a host has ended."""
        for host, process in enumerate(self.processes):
            if process.poll() is not None:
                raise self.fault(host, f"ended with {process.returncode} after {len(self.steps())} steps")

    def come_to(self, steps: int) -> None:
        """Wait until so many steps are written down."""
        deadline = time.monotonic() + _RUN_SECONDS
        while len(read_metrics(self.run / "metrics.jsonl")) < steps:
            self.require_running()
            if time.monotonic() > deadline:
                raise self.fault(0, f"did not come to step {steps} in {_RUN_SECONDS:.0f} s")
            time.sleep(0.01)

    def stand_still(self, seconds: float) -> None:
        """Wait until no step has been written down for so long."""
        steps, since = 0, time.monotonic()
        while time.monotonic() - since < seconds:
            self.require_running()
            if (found := len(read_metrics(self.run / "metrics.jsonl"))) > steps:
                steps, since = found, time.monotonic()
            time.sleep(0.1)

    def end(
        self, codes: Sequence[int] = (0,), line: str = "", *, within: float = _RUN_SECONDS, but_last: int = 0
    ) -> float:
        """Wait until all hosts have ended, all `but_last` with the line and one of the codes; return the seconds."""
        started = time.monotonic()
        for host, process in enumerate(self.processes):
            try:
                code = process.wait(max(0.1, started + within - time.monotonic()))
            except subprocess.TimeoutExpired:
                raise self.fault(host, f"goes on after {within:.0f} s") from None
            if host < len(self.processes) - but_last and not (code in codes and line in self.logs[host].read_text()):
                raise self.fault(host, f"ended with {code}, expected {codes[0]} and a line '… {line}'")
        return time.monotonic() - started

    def fault(self, host: int, what: str) -> NotHeld:
        """Return the fault of a host."""
        lines = self.logs[host].read_text().strip().splitlines() or ["(empty)"]
        return NotHeld(f"host {host} {what}; {self.logs[host]}: {lines[-1]}")


@dataclass
class Pod:
    """The jobs of a rehearsal; each method without arguments is a row, and returns the figures that show it."""

    command: Sequence[str]
    """Arguments of Python that all hosts get; the mesh and `out` come behind them."""
    here: tuple[int, int, Sequence[str]]
    """Hosts, devices of each, and overrides of the mesh."""
    there: tuple[int, int, Sequence[str]]
    """The same of other hosts, with another mesh."""
    bucket: Bucket
    out: Path
    sandbox: Sandbox | None = None
    outage_seconds: float = 60.0
    reference: list[Step] = field(default_factory=list)
    patience_seconds: float = 15.0
    """Seconds without progress after which hosts are to end: nothing in an undisturbed job takes so long."""
    jobs: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)
    """Ends jobs that go on from one row to the next."""
    hard: Job | None = None
    steps_made: int = 0
    """Steps of the job that moves from machine to machine."""
    step_seconds: float = math.nan
    """Seconds of the longest step of an undisturbed job but for the first, which compiles."""
    saved_after_seconds: float = math.nan

    @contextlib.contextmanager
    def job(self, name: str, machines: str = "first", *, moves: bool = False, called: str = "") -> Iterator[Job]:
        """Start a job whose `out` is NAME in the bucket; its machines may have files of an earlier command.

        The last host calls this machine by the name `called`, if there is one, and no host waits long for another.
        """
        hosts, devices, mesh = self.there if moves else self.here
        folders = [self.out / name / f"{machines}_{host}" for host in range(hosts)]
        for folder in folders:
            folder.mkdir(parents=True, exist_ok=True)
        logs = [folder / f"{len(list(folder.glob('*.log')))}.log" for folder in folders]
        variables = [{"ASTRA_STAGE": str(folder / "stage"), "WANDB_MODE": "disabled"} for folder in folders]
        if called:
            variables = [each | {PATIENCE_VARIABLE: f"{self.patience_seconds:.0f}"} for each in variables]
            variables[-1]["STORAGE_EMULATOR_HOST"] = self.bucket.url.replace("127.0.0.1", called)
        command = [[*self.command, *mesh, f"out={BUCKET}/{name}"]] * hosts
        with hosts_of_job(
            command, devices_per_host=devices, variables_H=variables, logs_H=logs, xla_flags=_XLA_FLAGS
        ) as processes:
            yield Job(processes, logs, folders[0] / "stage" / "gs" / "bucket" / name)

    def hardships(self) -> Job:
        """Return the job that is slow, then has no sandbox, then no bucket; the first row that asks starts it."""
        if self.hard is None:
            self.hard = self.jobs.enter_context(self.job("hardships"))
            self.hard.come_to(1)
        return self.hard

    def alike(self, job: Job, tolerance: float = 0.0, *, is_whole: bool = False) -> str:
        """Say how near the steps of a job have come to those of the undisturbed one.

        Raises:
            NotHeld: other data, losses that differ by more than the tolerance, or a step is missing if it `is_whole`.
        """
        found = job.steps()
        expected = self.reference if is_whole else self.reference[: len(found)]
        if [step.data for step in found] != [step.data for step in expected]:
            raise job.fault(0, f"learnt in {len(found)} steps from other data, expected {len(expected)} steps")
        numbers, wanted = ([step[:2] for step in steps] for steps in (found, expected))
        if not np.allclose(numbers, wanted, rtol=tolerance, atol=tolerance / 10):
            raise job.fault(0, f"has losses {_losses(found)}, expected {_losses(expected)}")
        return "bit for bit" if numbers == wanted else f"the same data, losses within {tolerance:g}"

    def whole(self, job: Job) -> str:
        """Wait for the end of a job, and compare it."""
        job.end()
        return self.alike(job, is_whole=True)

    def whole_run(self, name: str, machines: str = "first", *, moves: bool = False) -> Job:
        """Run a job to its end; if its hosts did not meet in JAX's 30 s, since one compiled for longer, once more."""
        for is_last in (False, True):
            with self.job(name, machines, moves=moves) as job:
                try:
                    job.end()
                    break
                except NotHeld:
                    if is_last or not any("context initialization failed" in log.read_text() for log in job.logs):
                        raise
        return job

    def preempted(self, job: Job) -> float:
        """Let a job make one step more, send SIGTERM to one host, and return the seconds until all have saved."""
        job.come_to(self.steps_made + 1)
        job.processes[-1].send_signal(signal.SIGTERM)
        seconds = job.end((0,), "on SIGTERM; resumed, it goes on from there", within=_END_SECONDS)
        self.steps_made = len(job.steps())
        return seconds

    def undisturbed(self) -> str:
        started = time.monotonic()
        job = self.whole_run("undisturbed")
        self.patience_seconds = max(15.0, (time.monotonic() - started) / 2)
        self.reference = job.steps()
        self.step_seconds = max(line["seconds"] for line in read_metrics(job.run / "metrics.jsonl")[1:])
        if len(self.reference) < 4 or not all(math.isfinite(step.loss) for step in self.reference):
            raise job.fault(0, f"has losses {_losses(self.reference)}, expected at least four finite ones")
        return f"{len(self.reference)} steps, losses {_losses(self.reference)}"

    def killed(self) -> str:
        with self.job("life") as job:
            job.come_to(2)  # so that the state after the first is saved
            job.processes[-1].kill()
            seconds = job.end((1,), "astra: HostFailed: one of the", within=_END_SECONDS, but_last=1)
            self.steps_made = len(job.steps())
        with self.job("life") as job:
            self.saved_after_seconds = self.preempted(job)
            return f"the others ended in {seconds:.1f} s and one line; the next command: {self.alike(job)}"

    def moved(self) -> str:
        with self.job("life", "second") as job:
            self.preempted(job)
            return f"saved and ended in {self.saved_after_seconds:.1f} s; the next command: {self.alike(job)}"

    def elsewhere(self) -> str:
        return self.alike(self.whole_run("life", "third", moves=True), _TOLERANCE, is_whole=True)

    def slow(self) -> str:
        slow, job = 1, self.hardships()  # the last of many may have no episode to be late with
        while len(job.steps()) <= _SLOW_STEPS and all(process.poll() is None for process in job.processes):
            for signum, seconds in _STOP_AND_GO:
                job.processes[slow].send_signal(signum)
                time.sleep(seconds)
        job.come_to(_SLOW_STEPS + 1)
        lines = read_metrics(job.run / "metrics.jsonl")[1:]
        found = [line["slowest_host"] for line in lines if "slowest_host" in line]
        if 2 * found.count(slow) <= len(found):
            raise job.fault(0, f"names as slowest {found}, expected host {slow}")
        return f"named in {found.count(slow)} of {len(found)} steps; {self.alike(job)}"

    def idle(self) -> str:
        with self.job("idle", called="localhost") as job:
            job.come_to(2)
            self.bucket.faults.stuck = "localhost"
            try:
                seconds = job.end((1, -signal.SIGABRT), within=_END_SECONDS + 2 * self.patience_seconds)
            finally:
                self.bucket.faults.stuck = ""
            if not any(f"host {len(job.logs) - 1} has come least far" in log.read_text() for log in job.logs):
                raise job.fault(0, f"does not name host {len(job.logs) - 1} as the one that has come least far")
            return f"named, and all ended in {seconds:.1f} s"

    def without_sandbox(self) -> str:
        assert self.sandbox is not None
        job = self.hardships()
        self.sandbox.stop()
        job.stand_still(2 * self.step_seconds)  # since its calls fail; a step that needs no rollout may come first
        self.sandbox.start()
        job.come_to(len(job.steps()) + 1)
        if not (again := sum(metric_totals(job.run / "metrics.jsonl", "service_errors").values())):
            raise job.fault(0, "made no call while the sandbox was away")
        return f"{again:.0f} attempts failed and were made again; {self.alike(job)}"

    def without_bucket(self) -> str:
        job = self.hardships()
        job.require_running()
        self.bucket.faults.unavailable = 1.0
        time.sleep(self.outage_seconds)
        self.bucket.faults.unavailable = 0.0
        job.end((0, 1, -signal.SIGABRT))
        if ended := [log for log in job.logs if "astra: " in log.read_text()]:
            with self.job("hardships") as job:
                return f"{len(ended)} hosts ended in one line; the next command: {self.whole(job)}"
        if not self.bucket.faults.injected:
            raise job.fault(0, "asked nothing of the bucket while it failed")
        return f"{self.bucket.faults.injected} requests failed, and it went on; {self.whole(job)}"


class Sandbox:
    """The sandbox's service as a process, always on one port, with the token of this process's environment."""

    def __init__(self, log: Path) -> None:
        """Choose the port."""
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self._port = str(free.getsockname()[1])
        self.url, self._log = f"http://127.0.0.1:{self._port}", log

    def start(self) -> None:
        """Start the service, and wait until it answers."""
        command = [sys.executable, "-m", "sandbox.server", "--port", self._port, "--until-stdin-closes"]
        with self._log.open("a") as log:
            self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=log, stderr=log)
        with SandboxClient(self.url, deadline_seconds=180) as client:
            client.health()

    def stop(self) -> None:
        """Kill it."""
        self._process.kill()
        self._process.communicate()


def rehearse(file: Path, overrides: Sequence[str], *, hosts: int, out: Path, outage_seconds: float) -> list[Row]:
    """Rehearse the life of a pod with the config in `file`; print each row as it ends, and return all.

    `hosts` is 2, 4 or 8. `out` is an empty folder for the logs and for what each host has on its disk.

    Raises:
        ConfigError: the config is of no run, or has no mesh.
    """
    config = load_run_config(file, overrides)
    here, others = meshes(config, _DEVICES_PER_HOST * hosts), 4 if hosts == 2 else 2
    there = meshes(config, _DEVICES_PER_HOST * others)
    if there == here:  # it has too many axes to be smaller
        there = meshes(config, 2 * math.prod(here["mesh"].shape))
    shards = max(each["mesh"].data * each["mesh"].fsdp for each in (here, there))
    small, is_rl = small_overrides(config, shards), isinstance(config, RLConfig)
    print("rehearse:", *small, *mesh_overrides(here))
    with served_bucket() as bucket, contextlib.ExitStack() as stack:
        os.environ |= {"STORAGE_EMULATOR_HOST": bucket.url, "ASTRA_STAGE": str(out / "stage")}
        os.environ["ASTRA_SANDBOX_TOKEN"] = secrets.token_hex(16)
        write_inputs(config, shards, out)
        astra = ["-m", "astra_jax.cli"]
        command = [*astra, "rl" if is_rl else "sft", str(file), *overrides, *small]
        pod = Pod(
            command,
            (hosts, math.prod(here["mesh"].shape) // hosts, mesh_overrides(here)),
            (others, math.prod(there["mesh"].shape) // others, mesh_overrides(there)),
            bucket,
            out,
            outage_seconds=outage_seconds,
        )
        stack.enter_context(pod.jobs)
        rows = [
            (f"undisturbed: {hosts} hosts, {shown(here)}", pod.undisturbed),
            ("a host is killed", pod.killed),
            ("SIGTERM at one host, then new machines", pod.moved),
            (f"moved to {others} hosts, {shown(there)}", pod.elsewhere),
            ("a host lives and does nothing", pod.idle),
            (f"the bucket fails for {outage_seconds:.0f} s", pod.without_bucket),
        ]
        if is_rl:
            pod.sandbox = Sandbox(out / "sandbox.log")
            pod.sandbox.start()
            stack.callback(pod.sandbox.stop)
            on_sandbox = ["--sandbox", pod.sandbox.url]
            pod.command = [*command, *on_sandbox]
            attack = [sys.executable, *astra, "records", "attack", f"{BUCKET}/environments", *on_sandbox]
            subprocess.run(attack, check=True, stdout=subprocess.DEVNULL)
            rows[4:5] = [("a host is slow", pod.slow), ("the sandbox is lost and comes back", pod.without_sandbox)]
        return list(table(rows))


def table(rows: Iterable[tuple[str, Callable[[], str]]]) -> Iterator[Row]:
    """Print and yield each row when it is known; without the first there is nothing to compare others with."""
    print(f"{'what':<42} | held | {'how it was seen':<80} | seconds")
    for number, (what, row) in enumerate(rows):
        started = time.monotonic()
        try:
            held, seen = True, row()
        except NotHeld as error:
            held, seen = False, str(error)
        print(found := Row(what, held, seen, time.monotonic() - started), flush=True)
        yield found
        if not held and not number:
            return


def _losses(steps: Sequence[Step]) -> str:
    return ", ".join(f"{step.loss:.4g}" for step in steps)
