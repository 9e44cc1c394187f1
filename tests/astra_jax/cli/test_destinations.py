"""Every command that writes, against every kind of place that is not its own: refused in one line, no byte touched."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from astra_jax.cli.command import main
from astra_jax.testing import tiny_environment
from synthesis.record_io import write_records

CONFIGS = Path(__file__).parents[3] / "configs"
COMMANDS = {
    "synthesize tools": ["synthesize", "tools", "SRC", "--out", "OUT"],
    "synthesize trajectories": [
        "synthesize", "trajectories", f"{CONFIGS}/tiny_trajectories.toml", "tool_documents=['SRC']", "out=OUT",
    ],
    "synthesize environments": [
        "synthesize", "environments", f"{CONFIGS}/tiny_environments.toml", "knowledge=['SRC']", "out=OUT",
    ],
    "records export": ["records", "export", "SRC", "--out", "OUT"],
    "sft": ["sft", f"{CONFIGS}/tiny_sft.toml", "environments=['SRC']", "out=OUT"],
    "rl": ["rl", f"{CONFIGS}/tiny_rl.toml", "environments=SRC", "out=OUT"],
    "evaluate environments": [
        "evaluate", "environments", f"{CONFIGS}/tiny_evaluation.toml", "environments=SRC", "policy=SRC", "out=OUT",
    ],
    "convert hf-to-orbax": ["convert", "hf-to-orbax", "SRC", "OUT"],
    "convert orbax-to-hf": ["convert", "orbax-to-hf", "SRC", "OUT"],
    "quickstart": ["quickstart", "--tool-documents", "SRC", "--out", "OUT"],
}  # fmt: skip
"""Every command that is told where to write. `astra report` writes at a place of its own; it follows below."""
DESTINATIONS = {
    "a foreign folder": "foreign",
    "a folder that has a config.json and a params.json": "model",
    "a folder whose dataset.json is the user's": "data",
    "a file": "foreign/notes.txt",
    "a place below a file": "foreign/notes.txt/out",
    "a link to a foreign folder": "link",
    "a link to a file": "link_to_file",
    "a link to nothing": "dangling",
    "a link to itself": "loop",
    "a read-only folder": "read_only",
    "a new place in a read-only folder": "read_only/out",
    "the source": "deep/source",
    "a link to the source": "link_to_source",
    "a parent of the source": "deep",
    "the working directory": ".",
    "its parent": "..",
    "the home": "~",
}


@pytest.fixture
def places(tmp_path, monkeypatch) -> Iterator[Path]:
    """All of the user's things, in one folder."""
    for name in ("foreign", "model", "data", "home", "below/here", "read_only"):
        (tmp_path / name).mkdir(parents=True)
    for name in ("foreign/notes.txt", "home/thesis.tex", "model/model.safetensors", "data/rows.csv"):
        (tmp_path / name).write_text("years of work")
    for name in ("model/config.json", "model/params.json", "data/dataset.json"):
        (tmp_path / name).write_text('{"kind": "mine"}')
    for link, target in (
        ("link", "foreign"),
        ("link_to_file", "foreign/notes.txt"),
        ("dangling", "nowhere"),
        ("loop", "loop"),
        ("link_to_source", "deep/source"),
    ):
        (tmp_path / link).symlink_to(tmp_path / target)
    write_records(tmp_path / "deep" / "source", [tiny_environment()], kind="environment")
    (tmp_path / "read_only").chmod(0o555)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path / "below" / "here")
    yield tmp_path
    (tmp_path / "read_only").chmod(0o755)


def contents(folder: Path) -> dict[str, object]:
    """Every file, folder and link by its path, with its bytes or target."""
    return {
        str(path.relative_to(folder)): os.readlink(path)
        if path.is_symlink()
        else path.read_bytes()
        if path.is_file()
        else "folder"
        for path in folder.rglob("*")
    }


def run(command: list[str], source: Path, out: str) -> int:
    return main([argument.replace("SRC", str(source)).replace("OUT", out) for argument in command])


def assert_refused_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    error = capsys.readouterr().err
    assert error.startswith("astra: DestinationRefused: "), error
    assert error.count("\n") == 1
    assert re.search(r" (is|holds|leads|exists) .+; name another place, nothing was touched$", error), error


@pytest.mark.parametrize(
    ("command", "destination"),
    [
        (command, destination)
        for command in COMMANDS
        for destination in DESTINATIONS
        if command == "sft" or destination in ("a foreign folder", "a link to the source", "the home")
    ],
)
def test_a_command_that_would_lose_something_is_refused_before_anything_is_touched(
    places, capsys, command, destination
):
    place = DESTINATIONS[destination]
    out = {"~": str(places / "home"), ".": ".", "..": ".."}.get(place, str(places / place))
    before = contents(places)
    assert run(COMMANDS[command], places / "deep" / "source", out) == 2
    assert contents(places) == before
    assert_refused_in_one_line(capsys)


REPORTS = {"of records": ("deep/source", "deep/source.html"), "of a run": ("run", "run/report.html")}


@pytest.mark.parametrize("kind", ["a file", "a folder", "a link to a file", "a link to nothing", "a read-only file"])
@pytest.mark.parametrize(("folder", "page"), REPORTS.values(), ids=REPORTS.keys())
def test_a_report_is_not_written_over_anything_but_a_report(places, capsys, folder, page, kind):
    page = places / page
    (places / "run").mkdir()
    if kind == "a folder":
        page.mkdir()
    elif kind.startswith("a link"):
        page.symlink_to(places / ("foreign/notes.txt" if kind == "a link to a file" else "nowhere"))
    else:
        page.write_text("<html>mine</html>")
    if kind == "a read-only file":
        page.write_text('<meta name="generator" content="astra report">')
        page.chmod(0o444)
    before = contents(places)
    assert main(["report", str(places / folder)]) == 2
    assert contents(places) == before
    assert_refused_in_one_line(capsys)


def test_an_earlier_report_is_replaced(places):
    page = places / "deep" / "source.html"
    assert main(["report", str(places / "deep" / "source")]) == 0
    first = page.read_bytes()
    write_records(places / "deep" / "source", [tiny_environment(), tiny_environment(rent=7)], kind="environment")
    assert main(["report", str(places / "deep" / "source")]) == 0
    assert page.read_bytes() != first
    assert sorted(path.name for path in (places / "deep").iterdir()) == ["source", "source.html"]


def test_an_export_is_not_written_into_the_records(places, capsys):
    source = places / "deep" / "source"
    assert run(COMMANDS["records export"], source, str(source / "export")) == 2
    assert "lies in the record directory" in capsys.readouterr().err
