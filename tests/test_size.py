"""How much there is to read: lines of Python, the README, the documents, the decisions, the scripts.

The bars may fall at any time. A commit that raises one names the code that left instead.
"""

from __future__ import annotations

import re
from pathlib import Path

from astra_jax.cli.config import KINDS, config_types
from astra_jax.config_keys import keys_of

ROOT = Path(__file__).parents[1]

README_WORDS = 1_300
README_LINES = 110
README_TABLE_ROWS_OF_FIGURES = 6
RESULTS_WORDS = 5_000
ALL_DOCUMENTS_WORDS = 26_000
"""README, CONTRIBUTING, CHANGELOG and docs/ without docs/log/, which is history."""
KEYS = {
    "rl": 88,
    "sft": 64,
    "synthesize trajectories": 73,
    "synthesize environments": 42,
    "evaluate environments": 17,
    "evaluate bfcl": 14,
    "evaluate tau2": 18,
    "evaluate acebench": 19,
    "evaluate aime": 13,
}
"""Keys of each config, those of its tables included."""
LINES = {
    "sandbox": 6_110,
    "sandbox/contract": 1_050,
    "sandbox/jail": 2_280,
    "synthesis": 25_490,
    "synthesis/answers": 1_020,
    "synthesis/audit": 460,
    "synthesis/environments": 3_760,
    "synthesis/export": 810,
    "synthesis/procedural": 4_160,
    "synthesis/prompts": 2_180,
    "synthesis/questions": 370,
    "synthesis/records": 970,
    "synthesis/run": 1_260,
    "synthesis/teacher": 1_970,
    "synthesis/tools": 3_410,
    "synthesis/track": 580,
    "synthesis/trajectories": 2_610,
    "astra_jax": 27_850,
    "astra_jax/benchmarks": 2_550,
    "astra_jax/chat": 730,
    "astra_jax/checkpoints": 1_800,
    "astra_jax/cli": 2_110,
    "astra_jax/engine": 2_720,
    "astra_jax/episodes": 1_320,
    "astra_jax/evaluate": 1_870,
    "astra_jax/launch": 190,
    "astra_jax/mesh": 730,
    "astra_jax/model": 2_440,
    "astra_jax/plan": 2_130,
    "astra_jax/recipes": 1_240,
    "astra_jax/rehearse": 810,
    "astra_jax/report": 1_480,
    "astra_jax/rl": 1_740,
    "astra_jax/serve": 1_110,
    "astra_jax/sft": 960,
    "astra_jax/training": 1_220,
    "tests": 40_200,
}
"""Lines of Python in each package and folder, with the folders in it, and of all tests."""
LINES_OF_A_FILE_OF_THE_ENGINE = 350
EXAMPLES = 3
DECISIONS = 60
DECISION_LINES = 5
SCRIPTS = 14
"""Files and folders in scripts/."""
SCRIPT_LINES = 6_000


def lines_of(*paths: Path) -> int:
    return sum(len(path.read_text(encoding="utf-8").splitlines()) for path in paths)


def words(*paths: Path) -> int:
    return sum(len(path.read_text(encoding="utf-8").split()) for path in paths)


def documents() -> list[Path]:
    folder = ROOT / "docs"
    return [*ROOT.glob("*.md"), *(path for path in folder.rglob("*.md") if folder / "log" not in path.parents)]


def decisions() -> list[str]:
    """Return each entry: its title and its text."""
    texts = (path.read_text(encoding="utf-8") for path in (ROOT / "docs" / "decisions").glob("*.md"))
    return [entry for text in texts for entry in re.split(r"^## ", text, flags=re.MULTILINE)[1:]]


def test_no_package_and_no_folder_grows():
    found = {name: lines_of(*(ROOT / name).rglob("*.py")) for name in LINES}
    assert {name: count for name, count in found.items() if count > LINES[name]} == {}
    packages = [path for name in ("sandbox", "synthesis", "astra_jax") for path in (ROOT / name).glob("*/__init__.py")]
    unnamed = [path.parent for path in packages if str(path.parent.relative_to(ROOT)) not in LINES]
    assert unnamed == [], "name each folder here"


def test_the_engine_is_read_in_an_hour():
    assert max(map(lines_of, (ROOT / "astra_jax" / "engine").glob("*.py"))) <= LINES_OF_A_FILE_OF_THE_ENGINE


def test_the_readme_is_one_page():
    readme = ROOT / "README.md"
    lines = readme.read_text(encoding="utf-8").splitlines()
    assert words(readme) <= README_WORDS
    assert len(lines) <= README_LINES
    figures = lines[next(number for number, line in enumerate(lines) if line.startswith("| greedy")) + 2 :]
    assert next(number for number, line in enumerate(figures) if not line) <= README_TABLE_ROWS_OF_FIGURES


def test_the_results_and_all_documents_together_are_bounded():
    assert words(ROOT / "docs" / "results.md") <= RESULTS_WORDS
    assert words(*documents()) <= ALL_DOCUMENTS_WORDS


def test_the_decisions_are_few_and_short():
    assert 0 < len(decisions()) <= DECISIONS
    for entry in decisions():
        title, *text = entry.strip().splitlines()
        assert len(text) <= DECISION_LINES, title


def test_configs_have_no_more_keys():
    found = {
        command: sum(not key.is_table for key in keys_of(config_type))
        for kind in KINDS
        for command, config_type in config_types(kind).items()
    }
    assert found.keys() == KEYS.keys()
    assert {command: count for command, count in found.items() if count > KEYS[command]} == {}


def test_the_examples_are_few():
    assert len(list((ROOT / "examples").glob("*.py"))) == EXAMPLES


def test_every_link_between_documents_leads_to_a_file_and_a_heading():
    for path in documents():
        for target in re.findall(
            r"\]\(([^)\s]+)\)", re.sub(r"<!--.*?-->", "", path.read_text(encoding="utf-8"), flags=re.DOTALL)
        ):
            if "://" in target:
                continue
            file, _, heading = target.partition("#")
            led_to = (path.parent / file) if file else path
            assert led_to.exists(), (path, target)
            if heading:
                titles = re.findall(r"^#+ (.+)$", led_to.read_text(encoding="utf-8"), re.MULTILINE)
                anchors = {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}
                assert heading in anchors, (path, target)


def test_the_history_is_dated():
    names = [path.name for path in (ROOT / "docs" / "log").glob("*.md") if path.name != "README.md"]
    assert names
    assert [name for name in names if not re.match(r"\d{4}-\d\d-\d\d-", name)] == []


def test_the_scripts_are_few_and_their_lines_bounded():
    folder = ROOT / "scripts"
    entries = {path.name for path in folder.iterdir() if path.name != "__pycache__"}
    assert 0 < len(entries) <= SCRIPTS
    assert lines_of(*folder.rglob("*.py")) <= SCRIPT_LINES
