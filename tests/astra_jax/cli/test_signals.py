"""Ctrl-C and SIGTERM end every long command in one line, with nothing lost and no process left behind.

Ctrl-C is sent as a terminal sends it: to the command and to everything that it has started.
"""

from __future__ import annotations

import contextlib
import http.server
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import NamedTuple

import httpx
import jax
import numpy as np
import psutil
import pytest

from astra_jax.checkpoints.checkpoint import load_params
from astra_jax.checkpoints.convert import hf_to_orbax
from astra_jax.checkpoints.policy import save_policy
from astra_jax.cli.command import main
from astra_jax.metrics_file import read_metrics
from astra_jax.testing import tiny_environment, tiny_model_config, tiny_tokenizer
from sandbox.local import local_sandbox
from synthesis.record_io import check_shards, write_records
from tests.astra_jax.checkpoints.test_convert import write_folder
from tests.astra_jax.curves import episodes, without_times
from tests.synthesis.journals import num_finished

ROOT = Path(__file__).parents[3]
CONFIGS = ROOT / "configs"
PYTHONPATH = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
SIGNALS = {signal.SIGINT: ("Ctrl-C", 130), signal.SIGTERM: ("SIGTERM", 143)}
ROLLOUT = "[rollout]\nmax_prompt_tokens = 320\nmax_response_tokens = 96\nmax_turns = 3\ntemperature = 1.0\n"

both_signals = pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM], ids=["Ctrl-C", "SIGTERM"])
slowly = partial(pytest.param, marks=pytest.mark.slow)


class Ended(NamedTuple):
    """How a command ended."""

    code: int
    lines: list[str]
    """Lines of standard error, without those of a service's log and of progress."""
    seconds: float

    def is_on(self, signum: int) -> bool:
        """Whether it ended as a command ends on a signal, in one line."""
        name, code = SIGNALS[signum]
        return (self.code, self.lines) == (code, [f"astra: ended on {name}"])

    def is_saved_on(self, signum: int, stage: str, steps: int) -> bool:
        """Whether it ended as training ends on a signal: SIGTERM is no failure."""
        name, code = {signal.SIGINT: ("Ctrl-C", 130), signal.SIGTERM: ("SIGTERM", 0)}[signum]
        line = f"{stage}: saved after step {steps} on {name}; resumed, it goes on from there"
        return (self.code, self.lines[-1:]) == (code, [line])


def sft_command(folder: Path, *overrides: str) -> list[str]:
    """A run of seconds in `folder`/run, on records beside it."""
    write_records(folder / "environments", [tiny_environment(rent=rent) for rent in range(4)], kind="environment")
    tokenizer = tiny_tokenizer()
    tokenizer.save(folder / "tokenizer", model_max_length=1024)
    changes = {
        "out": folder / "run", "tokenizer": folder / "tokenizer", "environments": [str(folder / "environments")],
        "trajectories": [], "irrelevant_per_band": {}, "length_buckets": [320], "batch_tokens": 1280, "steps": 10_000,
        "checkpoint_every_steps": 10_000,
    }  # fmt: skip
    # The quickstart's, but from random weights.
    lines = (CONFIGS / "tiny_sft.toml").read_text(encoding="utf-8").splitlines()
    kept = [line for line in lines if not line.startswith(("init = ", "conversations = "))]
    model = tiny_model_config(tokenizer.vocab_size).model_copy(update={"num_layers": 1, "hidden_size": 32})
    sizes = ("vocab_size", "hidden_size", "num_layers", "num_heads", "num_kv_heads", "head_dim", "intermediate_size")
    table = ["[model]", *(f"{name} = {getattr(model, name)}" for name in sizes), "tie_word_embeddings = true"]
    config = folder / "sft.toml"
    config.write_text("\n".join([*kept, *table]) + "\n", encoding="utf-8")
    return ["sft", str(config), *(f"{key}={value}" for key, value in changes.items()), *overrides]


class Command:
    """A command in a session of its own, as in a terminal."""

    def __init__(self, *arguments: str, cwd: Path, script: str | None = None):
        program = ["-c", script] if script is not None else ["-m", "astra_jax.cli"]
        self.errors = cwd / "stderr"
        with self.errors.open("w") as errors, (cwd / "stdout").open("w") as output:
            self.process = subprocess.Popen(
                [sys.executable, *program, *arguments],
                cwd=cwd,
                env={**os.environ, "PYTHONPATH": PYTHONPATH, "XLA_FLAGS": ""},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=errors,
                start_new_session=True,
            )

    def wait_until(self, is_so: Callable[[], object], timeout_seconds: float = 300) -> None:
        deadline = time.monotonic() + timeout_seconds
        while not is_so():
            assert self.process.poll() is None, f"ended by itself:\n{self.errors.read_text()}"
            assert time.monotonic() < deadline, self.errors.read_text()
            time.sleep(0.01)

    def send(self, signum: int) -> None:
        """Ctrl-C goes to the whole group, SIGTERM to the process."""
        assert self.process.poll() is None
        if signum == signal.SIGINT:
            os.killpg(self.process.pid, signum)
        else:
            self.process.send_signal(signum)

    def ended(self, timeout_seconds: float = 60) -> Ended:
        """Wait for the end; every process that it has started must end too, and without a traceback."""
        started = time.monotonic()
        try:
            children = psutil.Process(self.process.pid).children(recursive=True)
        except psutil.NoSuchProcess:
            children = []
        code = self.process.wait(timeout_seconds)
        seconds = time.monotonic() - started
        _, alive = psutil.wait_procs(children, timeout=15)
        assert alive == []
        text = self.errors.read_text()
        assert "Traceback" not in text, text
        assert "Exception ignored" not in text, text
        return Ended(
            code, [line for line in text.splitlines() if line.startswith(("astra:", "sft: s", "rl: s"))], seconds
        )

    def interrupted(self, signum: int) -> Ended:
        self.send(signum)
        return self.ended()

    def kill(self) -> None:
        if self.process.poll() is None:  # else its number may be another's by now
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()


@pytest.fixture
def astra(tmp_path: Path) -> Iterator[Callable[..., Command]]:
    """Starts the command in the test's folder; a process that is left at the end is killed."""
    commands: list[Command] = []

    def start(*arguments: str, script: str | None = None) -> Command:
        commands.append(Command(*arguments, cwd=tmp_path, script=script))
        return commands[-1]

    yield start
    for command in commands:
        command.kill()


class SlowSandbox(http.server.BaseHTTPRequestHandler):
    """Is healthy, and never answers a call."""

    calls = threading.Semaphore(0)

    def do_GET(self) -> None:
        body = b'{"status": "ok", "workers": {}}'
        self.send_response(200)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        self.calls.release()
        with contextlib.suppress(OSError):
            self.rfile.read(1)  # until the caller leaves
        self.close_connection = True

    def log_message(self, *_: object) -> None:
        pass


@contextlib.contextmanager
def served(sandbox: type[SlowSandbox]) -> Iterator[str]:
    """Serve on a free port; give the address."""
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), sandbox) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()


@pytest.fixture
def slow_sandbox(monkeypatch) -> Iterator[str]:
    monkeypatch.setattr(SlowSandbox, "calls", threading.Semaphore(0))
    with served(SlowSandbox) as url:
        yield url


def test_sft_saves_on_a_signal(astra, tmp_path):
    metrics = tmp_path / "run" / "metrics.jsonl"
    running = astra(*sft_command(tmp_path))
    running.wait_until(lambda: len(read_metrics(metrics)) >= 3)
    ended = running.interrupted(signal.SIGINT)
    lines = read_metrics(metrics)
    assert ended.is_saved_on(signal.SIGINT, "sft", len(lines))
    assert [line["step"] for line in lines] == list(range(len(lines)))
    load_params(tmp_path / "run" / "checkpoints" / f"{len(lines):08d}")


RL = f"""
seed = 0
steps = 1000
out = "run"
init = "policy"
environments = "environments"
group_size = 2
groups_per_step = 1
groups_per_rollout = 1
min_reward_std = 0.0
max_rollouts_per_step = 1000
{ROLLOUT}
[optimizer]
learning_rate = 1e-5
"""


class StuckProxy(SlowSandbox):
    """Hands so many calls on to a sandbox, and never answers another one."""

    url = ""
    answers = threading.Semaphore(0)

    def do_POST(self) -> None:
        if not self.answers.acquire(blocking=False):
            super().do_POST()
            return
        body = self.rfile.read(int(self.headers["content-length"]))
        headers = {name: value for name, value in self.headers.items() if name.lower() != "host"}
        reply = httpx.post(f"{self.url}{self.path}", content=body, headers=headers, trust_env=False, timeout=60)
        self.send_response(reply.status_code)
        self.send_header("content-length", str(len(reply.content)))
        self.end_headers()
        self.wfile.write(reply.content)


@both_signals
@pytest.mark.slow
def test_rl_ends_inside_a_rollout_whose_tools_are_slow_and_goes_on_to_the_same_bytes(
    astra, tmp_path, taught, slow_sandbox, monkeypatch, signum
):
    save_policy(taught, tmp_path / "policy")
    write_records(tmp_path / "environments", [tiny_environment()], kind="environment")
    # Two groups a rollout and one an update: one waits when the first step has ended, and the second rolls nothing out.
    settings = RL.replace("groups_per_rollout = 1", "groups_per_rollout = 2").replace("steps = 1000", "steps = 6")
    (tmp_path / "rl.toml").write_text(settings + "warmup_fraction = 0.0\n")
    with local_sandbox(workers=1) as url:
        assert astra("rl", "rl.toml", "out=whole", "--sandbox", url).ended(300).code == 0
        monkeypatch.setattr(StuckProxy, "url", url)
        monkeypatch.setattr(StuckProxy, "answers", threading.Semaphore(25))
        with served(StuckProxy) as stuck:
            running = astra("rl", "rl.toml", "--sandbox", stuck)
            running.wait_until(lambda: StuckProxy.calls.acquire(blocking=False))
            ended = running.interrupted(signum)
        steps = len(read_metrics(tmp_path / "run" / "metrics.jsonl"))
        assert 0 < steps < 6
        assert ended.is_saved_on(signum, "rl", steps)
        assert ended.seconds < 10
        assert astra("rl", "rl.toml", "--sandbox", url).ended(300).code == 0
    lines, expected = (
        [without_times(line) for line in read_metrics(tmp_path / out / "metrics.jsonl")] for out in ("run", "whole")
    )
    assert lines == expected
    assert episodes(tmp_path / "run") == episodes(tmp_path / "whole")
    weights, expected = (load_params(tmp_path / out / "policy")[1] for out in ("run", "whole"))
    assert jax.tree.all(jax.tree.map(np.array_equal, weights, expected))


@pytest.mark.parametrize("signum", [signal.SIGINT, slowly(signal.SIGTERM)])
def test_a_command_ends_while_it_waits_for_a_tool(astra, tmp_path, slow_sandbox, signum):
    write_records(tmp_path / "environments", [tiny_environment()], kind="environment")
    running = astra("records", "verify", "environments", "--sandbox", slow_sandbox)
    running.wait_until(lambda: SlowSandbox.calls.acquire(blocking=False))
    assert running.interrupted(signum).is_on(signum)


@pytest.mark.slow
def test_a_plan_ends_in_the_middle_of_a_compilation(astra):
    pytest.importorskip("libtpu", reason="needs the extra `plan`")
    running = astra("plan", f"{CONFIGS}/paper_rl_14b.toml", "--topology", "v5p:4x4x4")
    compiling = psutil.Process(running.process.pid)
    running.wait_until(lambda: compiling.num_threads() > 8 and compiling.cpu_times().user > 20)
    ended = running.interrupted(signal.SIGTERM)
    assert ended.is_on(signal.SIGTERM)
    assert ended.seconds < 10


@pytest.mark.parametrize("signum", [slowly(signal.SIGINT), signal.SIGTERM])
def test_a_service_ends_with_its_jails(astra, tmp_path, signum):
    running = astra("sandbox", "serve", "--port", "0", "--workers", "1")
    process = psutil.Process(running.process.pid)

    def is_healthy() -> bool:
        for connection in process.net_connections("tcp"):
            if connection.status == psutil.CONN_LISTEN:
                with contextlib.suppress(httpx.TransportError):
                    url = f"http://127.0.0.1:{connection.laddr.port}/health"
                    return httpx.get(url, trust_env=False).status_code == 200
        return False

    running.wait_until(is_healthy)
    assert running.interrupted(signum).is_on(signum)


@pytest.mark.slow
@pytest.mark.parametrize(("stage", "signum"), [("trajectories", signal.SIGINT), ("sft", signal.SIGTERM)])
def test_a_quickstart_ends_in_the_middle_of_a_stage(astra, tmp_path, signum, stage):
    running = astra("quickstart", "--out", "out")
    if stage == "sft":
        running.wait_until(lambda: len(read_metrics(tmp_path / "out" / "sft" / "metrics.jsonl")) >= 3, 900)
    else:
        journals = tmp_path / "out" / "trajectories.work"
        running.wait_until(lambda: num_finished(journals.glob("trajectories.sqlite")) >= 30)
    name, code = SIGNALS[signum]
    ended = running.interrupted(signum)
    assert ended.code == code
    said = f" on {name}; resumed, it goes on" if stage == "sft" else f"astra: ended on {name}; with --resume it goes on"
    assert said in ended.lines[-1]


STUBBORN = """
import sys, time
from astra_jax.cli import command, records
def verify(options):
    print("at work", flush=True)
    while True:
        try:
            time.sleep(60)
        except KeyboardInterrupt:
            print("cleaning up", flush=True)
records.verify = verify
sys.exit(command.main(["records", "verify", "nothing"]))
"""


def test_a_second_ctrl_c_ends_at_once_and_one_that_arrives_twice_is_one(astra, tmp_path):
    running, output = astra(script=STUBBORN), tmp_path / "stdout"
    running.wait_until(lambda: "at work" in output.read_text())
    for _ in range(2):  # from the terminal, and from a wrapper
        running.send(signal.SIGINT)
        time.sleep(0.05)
    running.wait_until(lambda: "cleaning up" in output.read_text())
    time.sleep(0.5)
    assert running.process.poll() is None
    ended = running.interrupted(signal.SIGINT)
    assert (ended.code, ended.lines) == (130, ["astra: ended at once on Ctrl-C"])
    assert ended.seconds < 1


SLOW_IMPORT = """
import importlib.abc, sys, time
class Slow(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name == "astra_jax.cli.command":
            print("imports", flush=True)
            time.sleep(60)
sys.meta_path.insert(0, Slow())
from astra_jax.cli.__main__ import astra
sys.exit(astra())
"""


@both_signals
def test_a_signal_while_modules_are_imported_ends_without_a_traceback(astra, tmp_path, signum):
    running = astra("--version", script=SLOW_IMPORT)
    running.wait_until(lambda: "imports" in (tmp_path / "stdout").read_text())
    ended = running.interrupted(signum)
    assert (ended.code, ended.lines) == (-signum, [])


SHOW = "records show records --count 99"


@pytest.mark.parametrize(
    ("command", "tail", "is_buffered", "said"),
    [
        (SHOW, "| true", True, "141\n"),
        ("--version", "| true", True, "141\n"),
        ("records show nowhere", "2>&1 | true", True, "141\n"),
        ("records show", "2>&1 >&- | true", True, "141\n"),
        (SHOW, "> /dev/full", True, "astra: OSError: [Errno 28] No space left on device\n1\n"),
        ("--version", "> /dev/full", False, "astra: OSError: [Errno 28] No space left on device\n1\n"),
    ],
)
def test_output_that_is_not_read_ends_quietly_as_other_tools_do_and_a_full_disk_is_one_line(
    tmp_path, command, tail, is_buffered, said
):
    write_records(tmp_path / "records", [tiny_environment(rent=rent) for rent in range(99)], kind="environment")
    astra = f"{sys.executable} -m astra_jax.cli {command}"
    done = subprocess.run(
        ["bash", "-c", f"{astra} {tail}; echo ${{PIPESTATUS[0]}} >&2"],  # how the command itself ended
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": PYTHONPATH, "PYTHONUNBUFFERED": "" if is_buffered else "1"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.stderr == said


def test_another_pipe_that_breaks_is_told(capsys, monkeypatch):
    def broken(options):
        raise BrokenPipeError(32, "Broken pipe")

    monkeypatch.setattr("astra_jax.cli.records.show", broken)
    assert main(["records", "show", "records"]) == 1
    assert capsys.readouterr().err == "astra: BrokenPipeError: [Errno 32] Broken pipe\n"


@pytest.mark.parametrize(
    "command",
    [
        ["records", "export", "records", "--out", "out"],
        pytest.param(
            ["synthesize", "trajectories", f"{CONFIGS}/tiny_trajectories.toml", "mcp_servers=[]", "out=out"],
            marks=pytest.mark.slow,
        ),
        pytest.param(["convert", "orbax-to-hf", "ours", "out"], marks=pytest.mark.slow),
        pytest.param(["sft", "SFT"], marks=pytest.mark.slow),
    ],
    ids=lambda command: " ".join(command[:2]),
)
def test_a_disk_without_room_is_one_line_and_leaves_nothing_half_written(tmp_path, command):
    """No file may grow beyond 2 kB."""
    write_records(tmp_path / "records", [tiny_environment(rent=rent) for rent in range(99)], kind="environment")
    if command[0] == "convert":
        write_folder(tmp_path / "hf")
        hf_to_orbax(tmp_path / "hf", tmp_path / "ours")
    if command[0] == "sft":
        command = sft_command(tmp_path, "steps=2", "model.hidden_size=256")
    before = {path.name for path in tmp_path.iterdir()}
    limited = (
        "import resource, signal, sys\nfrom astra_jax.cli.command import main\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (2_000, 2_000))\nsys.exit(main(sys.argv[1:]))"
    )
    done = subprocess.run(
        [sys.executable, "-B", "-c", limited, *command],  # byte code that is cut at 2 kB would be read by other tests
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": PYTHONPATH, "XLA_FLAGS": ""},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 1, done.stderr
    if command[0] != "sft":  # TensorStore's threads tell on their own of the other arrays that they could not write
        assert "Traceback" not in done.stderr, done.stderr
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("astra:")]
    assert "too large" in line or "disk I/O error" in line, line
    made = {path.name for path in tmp_path.iterdir()} - before
    assert made <= {"out.work", "run"}, json.dumps(sorted(made))
    if made == {"run"}:
        assert not list((tmp_path / "run").rglob("*.whole.json"))


def test_a_plain_run_leaves_the_signals_as_they_were(tmp_path):
    before = [signal.getsignal(signum) for signum in SIGNALS]
    write_records(tmp_path / "records", [tiny_environment()], kind="environment")
    assert main(["records", "stats", str(tmp_path / "records")]) == 0
    check_shards(tmp_path / "records")
    assert [signal.getsignal(signum) for signum in SIGNALS] == before
    assert signal.set_wakeup_fd(-1) == -1
