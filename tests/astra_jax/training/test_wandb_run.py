"""Weights & Biases follows `metrics.jsonl`: no step is missing or comes twice, and training goes on without it."""

from __future__ import annotations

import sys
import types

import pytest

from astra_jax.cli.command import main
from astra_jax.config import ConfigError
from astra_jax.metrics_file import read_metrics
from astra_jax.training.metrics import MetricsLog
from astra_jax.training.wandb_run import WandbConfig

CONFIG = WandbConfig(project="tools", entity="team")

SFT = """
seed = 0
steps = 1
out = "run"
init = "no/such/policy"
optimizer = { learning_rate = 1e-3 }
environments = ["no/such/records"]
length_buckets = [128]
batch_tokens = 128
wandb = { project = "tools" }
"""


class FakeWandb(types.ModuleType):
    """In the place of the package: remembers the lines sent to it, as W&B's server does, also across processes."""

    Error = type("Error", (Exception,), {})
    CommError = type("CommError", (Error,), {})
    AuthenticationError = type("AuthenticationError", (CommError,), {})
    UsageError = type("UsageError", (Error,), {})
    errors = types.SimpleNamespace(CommError=CommError, AuthenticationError=AuthenticationError, UsageError=UsageError)
    Settings = dict

    def __init__(self):
        super().__init__("wandb")
        self.starts, self.history, self.exit_codes = [], [], []
        self.mode, self.has_key = "online", True
        self.refusal, self.process_is_gone = None, False

    def setup(self):
        return types.SimpleNamespace(settings=types.SimpleNamespace(mode=self.mode))

    def login(self, **_):
        if self.refusal is not None:
            raise self.refusal
        return self.has_key

    def init(self, **options):
        self.starts.append(options)
        if self.refusal is not None and options["mode"] == "online":
            raise self.refusal
        self.id = options["id"] or "id-1"
        self.starting_step = len(self.history) if options["resume"] == "allow" else 0
        return self

    def log(self, metrics, *, step, commit):
        if self.process_is_gone:
            raise ConnectionResetError("connection lost")
        assert commit
        self.history.append((step, metrics["loss"]))

    def finish(self, *, exit_code):
        if self.process_is_gone:
            raise ConnectionResetError("connection lost")
        self.exit_codes.append(exit_code)


@pytest.fixture
def server(monkeypatch) -> FakeWandb:
    server = FakeWandb()
    monkeypatch.setitem(sys.modules, "wandb", server)
    return server


def write_steps(path, first, stop):
    with MetricsLog(path, first_step=first, wandb=CONFIG) as log:
        for step in range(first, stop):
            log.write(step, {"loss": 1 / (step + 1)})


def losses(stop):
    return [(step, 1 / (step + 1)) for step in range(stop)]


def test_a_resumed_run_goes_on_with_its_own_run_and_sends_no_step_twice(server, tmp_path):
    write_steps(tmp_path / "metrics.jsonl", 0, 5)
    write_steps(tmp_path / "metrics.jsonl", 3, 8)
    assert [(start["id"], start["resume"]) for start in server.starts] == [(None, "allow"), ("id-1", "allow")]
    assert server.history == losses(8)


def test_lines_that_never_reached_the_server_are_sent_when_the_run_resumes(server, tmp_path):
    write_steps(tmp_path / "metrics.jsonl", 0, 5)
    del server.history[2:]
    write_steps(tmp_path / "metrics.jsonl", 5, 7)
    assert server.history == losses(7)


def test_while_the_server_cannot_be_reached_a_run_starts_and_resumes_offline(server, tmp_path, capsys):
    write_steps(tmp_path / "metrics.jsonl", 0, 2)
    server.history.clear()
    server.refusal = server.CommError("no route to host")
    write_steps(tmp_path / "metrics.jsonl", 2, 4)
    assert [(start["mode"], start["resume"]) for start in server.starts[1:]] == [("online", "allow"), ("offline", None)]
    assert server.history == losses(4)
    (line,) = capsys.readouterr().err.splitlines()
    assert line == f"W&B cannot be reached, the run goes on offline in {tmp_path / 'wandb'}: no route to host"


@pytest.mark.parametrize("kind", [FakeWandb.AuthenticationError, FakeWandb.UsageError, FakeWandb.Error])
def test_a_server_that_refuses_is_an_error_that_names_the_way_out(server, tmp_path, kind):
    server.refusal = kind("the key was revoked")
    with pytest.raises(ConfigError, match="the key was revoked; to keep the run on this disk, set WANDB_MODE=offline"):
        write_steps(tmp_path / "metrics.jsonl", 0, 2)


def test_an_offline_run_holds_every_step_and_does_not_say_that_it_resumes(server, tmp_path):
    server.mode = "offline"
    write_steps(tmp_path / "metrics.jsonl", 0, 5)
    server.history.clear()
    write_steps(tmp_path / "metrics.jsonl", 3, 8)
    assert server.history == losses(8)
    assert [start["resume"] for start in server.starts] == [None, None]


def test_training_outlives_the_process_that_sends(server, tmp_path, capsys):
    with MetricsLog(tmp_path / "metrics.jsonl", first_step=0, wandb=CONFIG) as log:
        log.write(0, {"loss": 1.0})
        server.process_is_gone = True
        log.write(1, {"loss": 0.5})
        log.write(2, {"loss": 0.25})
    assert len(read_metrics(tmp_path / "metrics.jsonl")) == 3
    assert capsys.readouterr().err.count("W&B's process is gone") == 1


@pytest.mark.parametrize(("error", "exit_code"), [(None, 0), (SystemExit(0), 0), (ValueError("a bug"), 1)])
def test_a_run_failed_unless_it_ended_or_was_asked_to(server, tmp_path, error, exit_code):
    try:
        with MetricsLog(tmp_path / "metrics.jsonl", first_step=0, wandb=CONFIG):
            if error is not None:
                raise error
    except (SystemExit, ValueError):
        pass
    assert server.exit_codes == [exit_code]


@pytest.mark.parametrize(
    ("package", "message"),
    [
        (None, "[wandb] needs the package wandb, found none: pip install 'astra-jax[wandb]'"),
        ("without a key", "[wandb] needs a key in WANDB_API_KEY, found none; with WANDB_MODE=offline it needs none"),
        ("with a bad key", "[wandb]: 40 characters are due; set another key in WANDB_API_KEY, or WANDB_MODE=offline"),
    ],
)
def test_a_missing_package_or_a_key_that_is_missing_or_bad_is_one_line_at_the_start(
    server, monkeypatch, tmp_path, capsys, package, message
):
    """The message names neither the policy nor the records, which do not exist."""
    server.has_key = False
    if package == "with a bad key":
        server.refusal = server.AuthenticationError("40 characters are due")
    if package is None:
        monkeypatch.setitem(sys.modules, "wandb", None)
    (tmp_path / "config.toml").write_text(SFT)
    monkeypatch.chdir(tmp_path)
    assert main(["sft", "config.toml"]) == 2
    assert capsys.readouterr().err == f"astra: ConfigError: {message}\n"
    assert [path.name for path in tmp_path.iterdir()] == ["config.toml"]


def test_without_the_table_the_package_is_not_imported(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "wandb", None)  # importing it would raise
    with MetricsLog(tmp_path / "metrics.jsonl", first_step=0) as log:
        log.write(0, {"loss": 1.0})
