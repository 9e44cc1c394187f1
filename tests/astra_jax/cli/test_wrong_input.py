"""A command with any wrong input: one line, the right exit code, and nothing made or changed."""

from __future__ import annotations

import http.server
import json
import os
import shutil
import threading
from collections.abc import Iterator
from hashlib import sha256
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import pytest

from astra_jax.checkpoints.hf import save_hf
from astra_jax.checkpoints.policy import Policy, save_policy
from astra_jax.cli.arguments import parsed
from astra_jax.cli.command import main
from astra_jax.cli.commands import astra_parser
from astra_jax.model.qwen3 import init_params
from astra_jax.testing import tiny_environment, tiny_model_config, tiny_tokenizer
from synthesis.record_io import write_records

ROOT = Path(__file__).parents[3]
CONFIGS = ROOT / "configs"

SFT = """
seed = 0
steps = 2
out = "out"
init = "policy"
environments = ["environments"]
length_buckets = [512]
batch_tokens = 512
[optimizer]
learning_rate = 1e-3
"""
RL = """
seed = 0
steps = 1
out = "out"
init = "policy"
environments = "environments"
group_size = 2
groups_per_step = 1
groups_per_rollout = 1
[rollout]
max_prompt_tokens = 384
max_response_tokens = 64
max_turns = 1
temperature = 1.0
[optimizer]
learning_rate = 1e-4
"""
EVALUATION = """
seed = 0
policy = "policy"
environments = "environments"
out = "out"
[rollout]
max_prompt_tokens = 384
max_response_tokens = 64
max_turns = 1
temperature = 1.0
"""
TRAJECTORIES = """
count = 2
out = "out"
shipped_examples = false
tool_documents = ["nothing"]
"""
ENVIRONMENTS = """
seed = 0
count = 2
out = "out"
"""


class Health(http.server.BaseHTTPRequestHandler):
    """A sandbox that is healthy and refuses everything else, on one path; another program on the others."""

    def do_GET(self) -> None:
        body = b"<html>a wiki</html>" if self.path.startswith("/wiki") else b'{"status": "ok", "workers": {}}'
        self.send_response(200)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_POST(self) -> None:
        self.send_error(401)

    def log_message(self, *_: object) -> None:
        pass


def copied(world: Path, name: str, new: str) -> Path:
    shutil.copytree(world / name, world / new)
    return world / new


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with inputs of every command, whole and damaged; a listener on the port in `port`."""
    world = tmp_path_factory.mktemp("world")
    for name, text in (
        ("sft.toml", SFT),
        ("rl.toml", RL),
        ("evaluation.toml", EVALUATION),
        ("trajectories.toml", TRAJECTORIES),
        ("environments.toml", ENVIRONMENTS),
        ("broken.toml", "seed = 0\nsteps = = 2\n"),
        ("prose.json", json.dumps({"text": "The rent of Amber Falcon is 2150.", "domain": "real_estate"})),
        ("few_rows.csv", "name,rent\nAmber,1\nJade,2\n"),
        ("knowledge.xyz", "?"),
        ("cut.jsonl", '{"question": "What'),
        ("summary.json", "{"),
    ):
        (world / name).write_text(text)
    (world / "binary.toml").write_bytes(bytes(range(256)))
    for name in ("folder.toml", "nothing", "useless", "run_of_nothing", "run_with_a_damaged_summary"):
        (world / name).mkdir()
    (world / "useless" / "a.json").write_text('{"some": "thing"}')
    (world / "useless" / "b.json").write_text("{")
    (world / "run_with_a_damaged_summary" / "summary.json").write_text("{")
    # records
    environments = [tiny_environment(rent=rent) for rent in range(4)]
    write_records(world / "environments", environments, kind="environment")
    write_records(world / "no_environments", [], kind="environment")
    write_records(world / "no_trajectories", [], kind="trajectory")
    copied(world, "environments", "without_shard").joinpath("shard-00000-of-00001.array_record").unlink()
    shard = copied(world, "environments", "with_damaged_shard") / "shard-00000-of-00001.array_record"
    shard.write_bytes(b"?" * shard.stat().st_size)
    (copied(world, "environments", "with_damaged_card") / "dataset.json").write_text('{"kind": "environ')
    for name, change in (("of_another_version", {"schema_version": 999}), ("of_no_kind", {"kind": "recipe"})):
        path = copied(world, "environments", name) / "dataset.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | change))
    # policies and HuggingFace folders
    tokenizer = tiny_tokenizer()
    tokenizer.save(world / "tokenizer", model_max_length=1024)
    model = tiny_model_config(tokenizer.vocab_size).model_copy(update={"num_layers": 1})
    save_policy(Policy(model, init_params(model, seed=0), tokenizer), world / "policy")
    (copied(world, "policy", "policy_without_tokenizer") / "tokenizer.json").unlink()
    (copied(world, "policy", "policy_with_a_damaged_tokenizer") / "tokenizer.json").write_text("{")
    (copied(world, "policy", "policy_with_damaged_params") / "params.json").write_text("{")
    (copied(world, "policy", "policy_not_whole") / "params.whole.json").unlink()
    damaged = copied(world, "policy", "policy_with_changed_weights")
    largest = max((damaged / "params").rglob("*"), key=lambda path: path.stat().st_size * path.is_file())
    largest.write_bytes(bytes(largest.stat().st_size))
    save_hf(init_params(model, seed=0), model, world / "hf")
    (copied(world, "hf", "hf_without_config") / "config.json").unlink()
    (copied(world, "hf", "hf_without_weights") / "model.safetensors").unlink()
    (copied(world, "hf", "hf_with_a_damaged_config") / "config.json").write_text("{")
    (copied(world, "hf", "hf_with_cut_weights") / "model.safetensors").write_bytes(b"12345678")
    path = copied(world, "hf", "hf_of_another_kind") / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"model_type": "mistral"}))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Health) as server:
        (world / "port").write_text(str(server.server_address[1]))
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield world
        server.shutdown()
        thread.join()


def contents(folder: Path) -> dict[str, str]:
    return {
        str(path.relative_to(folder)): sha256(path.read_bytes()).hexdigest() if path.is_file() else "folder"
        for path in sorted(folder.rglob("*"))
    }


class Row(NamedTuple):
    """A command, the exit code it ends with, and words of its line."""

    command: str
    exit_code: int
    words: tuple[str, ...]
    may_make: tuple[str, ...] = ()


def row(command: str, exit_code: int, *words: str, may_make: tuple[str, ...] = ()) -> Row:
    return Row(command, exit_code, words, may_make)


DEAD = "http://127.0.0.1:9"
"""An address without a listener."""

ROWS = [
    # the command line
    row("synthesise", 2, "invalid choice: 'synthesise'", "synthesize"),
    row("records", 2, "required: ACTION", "astra records --help"),
    row("synthesize tools documents", 2, "required: --out"),
    row("sft", 2, "required: CONFIG"),
    row("sft sft.toml --jsno", 2, "--jsno", "astra sft --help"),
    row("sft sft.toml nonsense", 2, "key=value", "'nonsense'"),
    row("records show environments extra", 2, "extra"),
    row("records show environments --count 0", 2, "--count", "from 1 on", "'0'"),
    row("records export environments --format xml --out lines", 2, "--format", "'xml'", "jsonl"),
    row("sandbox serve --port 99999", 2, "--port", "from 0 to 65535", "'99999'"),
    row("sandbox serve --port PORT", 1, "cannot listen on 127.0.0.1:PORT", "in use"),
    row("sandbox serve --host nobody.invalid --port 0", 1, "cannot listen on nobody.invalid"),
    row("sandbox serve --host 0.0.0.0 --port 0", 1, "set a token"),
    row("quickstart --seed 1e3 --out out", 2, "--seed", "'1e3'"),
    row("plan sft.toml", 2, "required: --topology"),
    row("convert sideways policy out", 2, "'sideways'", "hf-to-orbax", "orbax-to-hf"),
    row("convert hf-to-orbax hf out --dtype float16", 2, "--dtype", "'float16'", "bfloat16"),
    # configs
    row("sft missing.toml", 2, "there is no config at missing.toml"),
    row("sft sft.toml/config.toml", 2, "sft.toml/config.toml", "Not a directory"),
    row("sft folder.toml", 2, "folder.toml", "Is a directory"),
    row("sft binary.toml", 2, "binary.toml", "is not UTF-8 text"),
    row("sft broken.toml", 2, "broken.toml is not TOML", "line 2"),
    row("sft sft.toml sedd=1", 2, "unknown key sedd", "did you mean seed?"),
    row("sft sft.toml optimizer.learning_rat=1", 2, "key optimizer.learning_rat;", "mean optimizer.learning_rate?"),
    row("rl rl.toml temperature=1", 2, "unknown key temperature;", "did you mean rollout.temperature?"),
    row("rl rl.toml seed.value=1", 2, "seed is a value, not a table"),
    row("rl rl.toml irrelevant_per_band.huge=1", 2, "irrelevant_per_band.huge", "'high'"),
    row("sft sft.toml model.width=3", 2, "unknown key model.width;", "hidden_size"),
    row("sft sft.toml steps=many", 2, "steps", "valid integer", "'many'"),
    row("sft sft.toml seed=-1", 2, "seed", "greater than or equal to 0", "found -1"),
    row("sft sft.toml epochs=1", 2, "either steps or epochs"),
    row("sft sft.toml length_buckets=[512,256]", 2, "length_buckets that rise"),
    row("sft sft.toml conversations=['sft.toml']", 1, "sft.toml, line 2", "expected a JSON object"),
    row("sft sft.toml conversations=['missing.jsonl']", 1, "No such file", "missing.jsonl"),
    row("synthesize trajectories trajectories.toml refuse_share=1 ask_back_share=1", 2, "refuse_share"),
    row(
        "synthesize trajectories trajectories.toml templates=false", 2, "name a model in a [teacher]", "templates=true"
    ),
    row("synthesize environments environments.toml scenarios.no_hop=1", 2, "scenarios.no_hop", "'single_hop'"),
    row("evaluate environments evaluation.toml polcy=x", 2, "unknown key polcy", "did you mean policy?"),
    row("plan OTHER --topology v5p:4x4x4", 2, "`astra sft`", "`astra rl`", "paper_trajectories.toml"),
    # records
    row("records show missing", 1, "no", "dataset.json", "missing"),
    row("records show with_damaged_card", 1, "with_damaged_card/dataset.json is not a dataset card"),
    row("records show of_another_version", 1, "schema version", "999"),
    row("records stats of_no_kind", 1, "'recipe'"),
    row(
        "records show without_shard", 1, "shard-00000-of-00001.array_record", "is missing, so the directory is damaged"
    ),
    row("records verify with_damaged_shard --sandbox LIVE", 1, "with_damaged_shard", "damaged"),
    row("records stats no_environments", 1, "no_environments has no environment to count"),
    row("records export environments --split ../x --out out", 2, "--split", "'../x'"),
    row("report missing", 1, "missing"),
    row("report run_of_nothing", 1, "not a record directory", "run_of_nothing"),
    row("report run_with_a_damaged_summary", 1, "summary.json"),
    # sandboxes
    row(f"records verify environments --sandbox {DEAD}", 1, f"no sandbox answers at {DEAD}", "refused"),
    row("records verify environments --sandbox LIVE/wiki", 1, "no sandbox answers at", "/wiki"),
    row("records verify environments --sandbox LIVE", 1, "HTTP 401"),
    row("records verify environments --sandbox 127.0.0.1:8377", 2, "--sandbox", "'127.0.0.1:8377'"),
    row("records verify environments --sandbox http://host:99999", 2, "--sandbox", "'http://host:99999'"),
    # inputs of a run
    row("sft sft.toml init=missing", 1, "missing: ", "no such folder"),
    row("plan rl.toml --topology v5p:4x4x4 init=missing", 1, "missing: ", "no such folder"),
    row("serve missing", 1, "missing: ", "no such folder"),
    row("replay log.jsonl --policy missing", 1, "log.jsonl"),
    row("sft sft.toml init=policy_without_tokenizer", 1, "policy_without_tokenizer/tokenizer.json"),
    row("sft sft.toml init=policy_with_a_damaged_tokenizer", 1, "policy_with_a_damaged_tokenizer/tokenizer.json"),
    row("sft sft.toml init=policy_with_damaged_params", 1, "policy_with_damaged_params/params.json"),
    row("sft sft.toml init=hf", 1, "params.json", "hf"),
    row("sft sft.toml environments=[]", 2, "found 0 samples", may_make=("out/run.json",)),
    row("sft sft.toml environments=['missing']", 1, "missing"),
    row("sft sft.toml trajectories=['environments']", 1, "Trajectory", "'environment'", may_make=("out/run.json",)),
    row("sft sft.toml length_buckets=[8] batch_tokens=8", 2, "raise the largest", may_make=("out/run.json",)),
    row("sft sft.toml mesh.fsdp=3", 2, "3 devices"),
    row("rl rl.toml init=policy_not_whole --sandbox LIVE", 1, "policy_not_whole is damaged", may_make=("out/*",)),
    row("rl rl.toml init=policy_with_changed_weights --sandbox LIVE", 1, "checksum", may_make=("out/*",)),
    row("rl rl.toml environments=no_environments --sandbox LIVE", 1, "no_environments has no record"),
    row("rl rl.toml environments=no_trajectories --sandbox LIVE", 1, "Environment", "'trajectory'"),
    row(f"rl rl.toml --sandbox {DEAD}", 1, f"no sandbox answers at {DEAD}"),
    row("evaluate environments evaluation.toml environments=no_environments --sandbox LIVE", 1, "no_environments"),
    row("evaluate environments evaluation.toml rollout.max_prompt_tokens=8 --sandbox LIVE", 1, "prompt", "8"),
    # inputs of synthesis
    row("synthesize tools missing --out out", 1, "missing"),
    row("synthesize tools nothing --out out", 1, "nothing", ".json"),
    row(
        "synthesize tools useless --out out",
        1,
        "unknown format: a.json",
        "unreadable document: b.json",
        "no usable server was kept of 2 read",
    ),
    row("synthesize trajectories trajectories.toml", 1, "nothing", ".json"),
    row("synthesize trajectories trajectories.toml tool_documents=['useless']", 1, "unknown format: a.json"),
    row(
        "synthesize trajectories trajectories.toml tool_documents=[] mcp_servers=[{name='T',command=['no-such']}]",
        1,
        "MCP server 'T': it does not start",
        "no-such",
        may_make=("out.work",),
    ),
    row(
        "synthesize environments environments.toml knowledge=['missing'] --sandbox LIVE",
        1,
        "missing does not exist; name a knowledge file",
    ),
    row("synthesize environments environments.toml knowledge=['knowledge.xyz'] --sandbox LIVE", 1, "knowledge.xyz"),
    row("synthesize environments environments.toml knowledge=['cut.jsonl'] --sandbox LIVE", 1, "cut.jsonl"),
    row("synthesize environments environments.toml knowledge=['nothing'] --sandbox LIVE", 1, "nothing"),
    row(
        "synthesize environments environments.toml knowledge=['prose.json'] --sandbox LIVE",
        1,
        "unusable reply: ",
        "the embedded teacher can read tables",
        "found a passage about 'real_estate'",
    ),
    row("synthesize environments environments.toml knowledge=['few_rows.csv'] --sandbox LIVE", 1, "at least 5 rows"),
    row("synthesize environments environments.toml domains={cheese=1} --sandbox LIVE", 1, "found the domain 'cheese'"),
    row("synthesize environments environments.toml varieties={stateful=1} --sandbox LIVE", 2, "stateful"),
    row(f"synthesize environments environments.toml --sandbox {DEAD}", 1, f"no sandbox answers at {DEAD}"),
    row("synthesize trajectories trajectories.toml shipped_examples=true teacher.model=m", 1, "NO_KEY_HERE"),
    row("synthesize trajectories trajectories.toml teacher.modle=m", 2, "teacher.modle", "mean teacher.model?"),
    # checkpoints
    row("convert hf-to-orbax missing out", 1, "missing: ", "no such folder"),
    row("convert hf-to-orbax hf_without_config out", 1, "hf_without_config", "config.json"),
    row("convert hf-to-orbax hf_without_weights out", 1, "hf_without_weights", "safetensors"),
    row("convert hf-to-orbax hf_with_a_damaged_config out", 1, "hf_with_a_damaged_config/config.json"),
    row("convert hf-to-orbax hf_with_cut_weights out", 1, "hf_with_cut_weights/model.safetensors"),
    row("convert hf-to-orbax hf_of_another_kind out", 1, "hf_of_another_kind", "'qwen3'", "'mistral'"),
    row("convert orbax-to-hf missing out", 1, "missing: ", "no such folder"),
    row("convert orbax-to-hf hf out", 1, "hf", "params.json"),
    row("convert orbax-to-hf policy_not_whole out", 1, "policy_not_whole is damaged"),
    # a place that no package knows, in a key of any config and in any option
    row("sft sft.toml out=URL", 1, "nowhere://bucket/path: ", "Protocol not known"),
    row("rl rl.toml init=URL", 1, "nowhere://bucket/path: "),
    row("evaluate environments evaluation.toml policy=URL", 1, "nowhere://bucket/path: "),
    row("synthesize environments environments.toml knowledge=['URL']", 1, "nowhere://bucket/path: "),
    row("sft URL", 1, "nowhere://bucket/path: "),
    row("quickstart --tool-documents URL", 1, "nowhere://bucket/path: "),
    row("convert hf-to-orbax hf URL", 1, "nowhere://bucket/path: "),
    row("report URL", 1, "nowhere://bucket/path: "),
    # a URL where a path of this machine is expected
    row("synthesize trajectories trajectories.toml teacher={model='m',cache='URL'}", 2, ": teacher.cache: expected"),
    # plans
    row("plan PLAN --topology b200:8", 2, "v5p:4x4x4", "'b200:8'"),
    row("plan PLAN --topology v5e:1x1 model=qwen4", 2, "qwen3-14b", "'qwen4'"),
]


WITH_LIBTPU = row("plan PLAN --topology v5p:9x9x9", 2, "no topology 'v5p:9x9x9'")
needs_libtpu = pytest.mark.skipif(not find_spec("libtpu"), reason="needs the extra `plan`")


@pytest.mark.parametrize(
    "each", [*(pytest.param(each, id=each.command) for each in ROWS), pytest.param(WITH_LIBTPU, marks=needs_libtpu)]
)
def test_one_line_names_the_fault_and_nothing_is_made(each, world, monkeypatch, capsys):
    port = (world / "port").read_text()
    live = f"http://127.0.0.1:{port}"
    monkeypatch.chdir(world)
    monkeypatch.setattr("sandbox.client._FIRST_CONTACT_SECONDS", 0.5)
    monkeypatch.setattr("astra_jax.cli.training.join_hosts", lambda: None)  # other tests have used JAX before
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    for name in ("JAX_PLATFORMS", "TPU_SKIP_MDS_QUERY", "ALLOW_MULTIPLE_LIBTPU_LOAD"):
        monkeypatch.setenv(name, os.environ.get(name, ""))  # `plan` sets them
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    plan, other = (str(CONFIGS / f"paper_{name}.toml") for name in ("rl_14b", "trajectories"))
    places = {
        "PORT": port,
        "LIVE": live,
        "PLAN": plan,
        "OTHER": other,
        "NO_KEY_HERE": "OPENAI_API_KEY",
        "URL": "nowhere://bucket/path",
    }

    def placed(text: str) -> str:
        for name, value in places.items():
            text = text.replace(name, value)
        return text

    before = contents(world)
    assert main([placed(part) for part in each.command.split()]) == each.exit_code
    error = capsys.readouterr().err
    assert [line for line in error.splitlines() if line.startswith("astra:")] == error.splitlines()[-1:], error
    assert "Traceback" not in error
    line = error.splitlines()[-1]
    for words in each.words:
        assert placed(words) in line
    after = contents(world)
    made = [name for name in after if name not in before and after[name] != "folder"]
    try:
        assert {name: after.get(name) for name in before} == before
        assert [name for name in made if not any(Path(name).match(pattern) for pattern in each.may_make)] == []
    finally:
        for name in ("out", "out.work"):
            shutil.rmtree(world / name, ignore_errors=True)


@pytest.mark.parametrize(
    "written",
    ["--json out=x seed=1", "out=x --json seed=1", "out=x seed=1 --json", "out=x --sandbox http://h:1 seed=1 --json"],
)
def test_options_stand_before_between_and_after_overrides(written):
    command = ["rl", "rl.toml", *written.split()]
    options = parsed(astra_parser(), command)
    assert (options.config, options.overrides, options.json) == (Path("rl.toml"), ["out=x", "seed=1"], True)


def test_the_version_the_help_and_the_directions_of_a_conversion_are_told(capsys):
    assert main([]) == 0
    assert "astra quickstart" in capsys.readouterr().out
    for command, words in ((["--version"], "astra "), (["convert", "--help"], "hf-to-orbax")):
        with pytest.raises(SystemExit, match=r"^0$"):
            main(command)
        assert words in capsys.readouterr().out


def test_a_bug_keeps_its_traceback(monkeypatch):
    def broken(*_: object) -> None:
        raise ValueError("a bug")

    monkeypatch.setattr("astra_jax.cli.records._record_source", broken)
    with pytest.raises(ValueError, match="a bug"):
        main(["records", "show", "nothing"])
