"""Allowed imports between packages, read from the syntax trees, so that an import inside a function counts too."""

from __future__ import annotations

import ast
import functools
import graphlib
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
OURS = ("astra_jax", "synthesis", "sandbox", "scripts")
ALLOWED = {
    "sandbox": ("sandbox",),
    "synthesis": ("synthesis", "sandbox.client", "sandbox.protocol", "sandbox.program"),
    "astra_jax": (
        *("astra_jax", "synthesis.records", "synthesis.record_io", "synthesis.answers", "synthesis.foreign_messages"),
        *(
            "synthesis.run",
            "synthesis.embeddings",
            "sandbox.client",
            "sandbox.protocol",
            "sandbox.program",
            "sandbox.web_pages",
        ),
    ),
}
_FLOORS = {
    "sandbox": """
        errors bearer_token web_pages strict_json protocol metrics cgroup jail interpreter program
        packages isolation worker pool execution client contract self_test endpoints server local
    """,
    "synthesis": """
        errors python_source run records record_io nfkc stage written_language diversity verification answers
        foreign_messages questions teacher embeddings contamination prompts track tools trajectories environments audit
        procedural by_construction export cost
    """,
    "synthesis.trajectories": """
        tool_graph bindings chains tasks follow_ups augmentation collection reward_axes verification config selection
        data_flow statistics worker pipeline
    """,
    "synthesis.environments": """
        config selection questions proving state distractors verification own_functions worker pipeline
    """,
    "astra_jax": """
        errors config_keys config named_functions user_cache metrics_file transformers_library chat
        model mesh checkpoints engine episodes training sft rl evaluate benchmarks serve plan launch report testing
        rehearse recipes cli
    """,
}
"""The folders and files of each package, from the ground up: an arrow points down. In this order they are read, too."""
FLOORS = {package: names.split() for package, names in _FLOORS.items()}


def is_command(path: Path) -> bool:
    """Whether a file is the `astra` command or a whole recipe, which may import everything."""
    return path.parts[0] == "astra_jax" and path.parts[1] in ("cli", "recipes")


@functools.cache
def imported_modules(path: Path) -> list[str]:
    """Every module and name that a file imports."""
    return list(_imported(ast.parse(path.read_text(encoding="utf-8"))))


def _imported(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"line {node.lineno}: imports are written in full"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Call) and _name(node.func) in ("import_module", "__import__"):
            yield from (arg.value for arg in node.args if isinstance(arg, ast.Constant) and isinstance(arg.value, str))


def _name(function: ast.expr) -> str:
    """The last name of a called function; "" without one."""
    return getattr(function, "attr", getattr(function, "id", ""))


def violations(root: Path) -> list[str]:
    found = []
    for package, allowed in ALLOWED.items():
        for path in sorted((root / package).rglob("*.py")):
            file = path.relative_to(root)
            if is_command(file):
                continue
            for module in imported_modules(path):
                of_ours = module.split(".")[0] in OURS
                if of_ours and not any(f"{module}.".startswith(f"{prefix}.") for prefix in allowed):
                    found.append(f"{file}: {module}")
    return found


def test_every_package_imports_only_allowed_modules():
    assert violations(ROOT) == []


def test_no_test_of_the_product_imports_a_script():
    for path in (ROOT / "tests").rglob("*.py"):
        if ROOT / "tests" / "scripts" not in path.parents and "scripts" in path.read_text(encoding="utf-8"):
            assert [module for module in imported_modules(path) if module.startswith("scripts.")] == [], path


def arrows(root: Path) -> dict[str, set[str]]:
    """Every module of ours to those that it imports."""
    files = {
        ".".join(path.relative_to(root).with_suffix("").parts).removesuffix(".__init__"): path
        for package in ALLOWED
        for path in (root / package).rglob("*.py")
    }
    found = {}
    for module, path in files.items():
        ends = {name if name in files else name.rpartition(".")[0] for name in imported_modules(path)}
        found[module] = {end for end in ends if end in files} - {module}
    return found


def arrows_that_run_up(root: Path) -> list[str]:
    up = []
    for module, ends in sorted(arrows(root).items()):
        for package, floors in FLOORS.items():
            if (floor := floor_in(package, module)) is None:
                continue
            for end in sorted(ends):
                end_floor = floor_in(package, end)
                if end_floor not in (None, floor) and floors.index(end_floor) > floors.index(floor):
                    up.append(f"{module} -> {end}")
    return up


def floor_in(package: str, module: str) -> str | None:
    """The folder or file of a package in which a module lies; None outside the package, and for the package itself."""
    return module.removeprefix(f"{package}.").partition(".")[0] if module.startswith(f"{package}.") else None


def circles(root: Path) -> list[str]:
    """The modules of a circle of imports, over however many files; [] without one."""
    try:
        graphlib.TopologicalSorter(arrows(root)).prepare()
    except graphlib.CycleError as error:
        return list(error.args[1])
    return []


def test_every_folder_has_a_floor_and_every_arrow_inside_a_package_points_down():
    assert arrows_that_run_up(ROOT) == []


def test_no_file_imports_itself_by_way_of_others():
    assert circles(ROOT) == []


def test_an_arrow_that_runs_up_and_a_circle_are_found(tmp_path):
    for file, line in (
        ("astra_jax/chat/format.py", "from astra_jax.rl import train"),
        ("astra_jax/rl/train.py", "from astra_jax.rl.loss import loss"),
        ("astra_jax/rl/loss.py", "import astra_jax.rl.train"),
        ("synthesis/environments/questions/drafts.py", "from synthesis.environments.proving.proof import prove"),
        ("synthesis/environments/proving/proof.py", ""),
    ):
        path = tmp_path / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(line)
    assert arrows_that_run_up(tmp_path) == [
        "astra_jax.chat.format -> astra_jax.rl.train",
        "synthesis.environments.questions.drafts -> synthesis.environments.proving.proof",
    ]
    assert set(circles(tmp_path)) == {"astra_jax.rl.train", "astra_jax.rl.loss"}


@pytest.mark.parametrize(
    ("file", "line", "found"),
    [
        ("sandbox/pool.py", "import synthesis.records", "synthesis.records"),
        ("synthesis/stage.py", "def f():\n    from astra_jax.model import qwen3", "astra_jax.model.qwen3"),
        ("astra_jax/rl/train.py", "from synthesis.stage import run", "synthesis.stage.run"),
        ("astra_jax/client.py", "importlib.import_module('sandbox.server')", "sandbox.server"),
        ("astra_jax/model/cli.py", "import scripts.bench", "scripts.bench"),
        ("astra_jax/cli/synthesize.py", "from synthesis.environments.pipeline import run", None),
        ("astra_jax/rl/train.py", "from synthesis.records import Environment", None),
    ],
)  # fmt: skip
def test_a_forbidden_import_is_found_and_an_allowed_one_is_not(tmp_path, file, line, found):
    path = tmp_path / file
    path.parent.mkdir(parents=True)
    path.write_text(line)
    assert violations(tmp_path) == ([] if found is None else [f"{file}: {found}"])


def modules_of_synthesis_and_the_sandbox() -> list[str]:
    files = [path.relative_to(ROOT) for package in ("synthesis", "sandbox") for path in (ROOT / package).rglob("*.py")]
    return [
        ".".join(file.with_suffix("").parts).removesuffix(".__init__")
        for file in sorted(files)
        # Jailed interpreters run these; `python -m` runs the others.
        if file.name != "__main__.py" and file.parts[:2] != ("sandbox", "jail")
    ]


@pytest.mark.parametrize(
    ("modules", "heavy"),
    [
        pytest.param(
            ["astra_jax.cli.command", *modules_of_synthesis_and_the_sandbox()],
            ["jax", "jaxlib", "flax", "torch", "transformers", "sklearn"],
            id="synthesis, the sandbox and the command",
        ),
        pytest.param(
            ["synthesis.trajectories.pipeline", "synthesis.procedural.teacher"],
            ["httpx", "numpy", "scipy", "sklearn", "yaml", "openai", "mcp"],
            id="trajectories of the embedded teacher, whose memory is measured",
        ),
        pytest.param(
            ["astra_jax.engine.decoder", "astra_jax.episodes.rollout"],
            ["orbax", "tensorstore"],
            id="a decoder, which reads no checkpoint",
        ),
        pytest.param(
            ["astra_jax.benchmarks.bfcl", "astra_jax.benchmarks.aime", "astra_jax.report.benchmark_tables"],
            ["jax", "transformers", "bfcl_eval", "tau2"],
            id="the driver of a harness",
        ),
    ],
)
def test_modules_start_without_packages_that_only_others_need(modules, heavy):
    script = (
        "import importlib, json, sys\n"
        f"for module in {modules!r}: importlib.import_module(module)\n"
        f"print(json.dumps(sorted({{name.split('.')[0] for name in sys.modules}} & {set(heavy)!r})))"
    )
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == []
