"""A built wheel can be used alone: it has every config and template, and its command runs in an empty folder."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import zipfile
from importlib.metadata import distributions
from pathlib import Path

import pytest

from astra_jax.config import CONFIGS
from tests.test_import_rules import ROOT

pytestmark = pytest.mark.slow

_READ_ALL = """
import json, pathlib, tomllib
import astra_jax, astra_jax.config, astra_jax.chat.tokenizer, astra_jax.recipes.quickstart as quickstart
configs = sorted(quickstart.CONFIGS.glob("*.toml"))
for path in configs:
    tomllib.loads(path.read_text())
assert astra_jax.chat.tokenizer.CHAT_TEMPLATE_PATH.read_text()
print(json.dumps([astra_jax.__file__, [path.name for path in configs]]))
"""


@pytest.fixture(scope="module")
def installed(tmp_path_factory) -> Path:
    """The contents of a wheel, built without the network and laid out as pip does."""
    folder = tmp_path_factory.mktemp("wheel")
    source = folder / "source"  # a build leaves traces beside its sources
    ignored = shutil.ignore_patterns(".git", ".venv*", "runs", "build", "*.egg-info", "__pycache__", ".*_cache")
    shutil.copytree(ROOT, source, symlinks=True, ignore=ignored)
    build = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "--quiet", "-w", folder, source]
    subprocess.run(build, check=True, timeout=300)
    [wheel] = folder.glob("astra_jax-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder / "site")
    return folder / "site"


def run(installed: Path, folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(installed), "JAX_PLATFORMS": "cpu"}
    return subprocess.run(
        [sys.executable, *arguments], cwd=folder, env=environment, capture_output=True, text=True, timeout=300
    )


def test_every_data_file_of_the_packages_is_in_the_wheel(installed):
    data = ("*.toml", "*.jinja", "*.json", "*.safetensors", "*.gz", "project_files/*.*")
    expected = {
        str(path.relative_to(ROOT))
        for package in ("astra_jax", "synthesis", "sandbox")
        for pattern in data
        for path in (ROOT / package).rglob(pattern)
    } | {f"astra_jax/configs/{path.name}" for path in (ROOT / "configs").glob("*.toml")}
    assert len(expected) > 25
    assert [name for name in sorted(expected) if not (installed / name).is_file()] == []


def test_a_wheel_holds_the_three_packages_and_its_metadata(installed):
    [wheel] = distributions(path=[str(installed)])
    assert {path.name for path in installed.iterdir()} == {
        *("astra_jax", "synthesis", "sandbox"),
        f"astra_jax-{wheel.version}.dist-info",
    }
    headers = wheel.metadata
    assert headers["Requires-Python"] == ">=3.11"
    pythons = [line.rpartition(" ")[2] for line in headers.get_all("Classifier") if "Python :: 3." in line]
    assert pythons == ["3.11", "3.12", "3.13"]
    assert headers["License-Expression"] == "Apache-2.0"
    assert "jax<0.13,>=0.10" in headers.get_all("Requires-Dist")
    assert headers.get_payload() == (ROOT / "README.md").read_text(encoding="utf-8")
    assert [entry.value for entry in wheel.entry_points if entry.name == "astra"] == ["astra_jax.cli.__main__:astra"]


def test_the_quickstart_and_every_config_are_read_from_a_wheel_in_an_empty_folder(installed, tmp_path):
    done = run(installed, tmp_path, "-c", _READ_ALL)
    assert done.returncode == 0, done.stderr
    file, configs = json.loads(done.stdout)
    assert file == str(installed / "astra_jax" / "__init__.py")
    assert configs == sorted(path.name for path in CONFIGS.glob("*.toml"))
    help_text = run(installed, tmp_path, "-m", "astra_jax.cli", "quickstart", "--help")
    assert help_text.returncode == 0
    assert "--tool-documents" in help_text.stdout
    done = run(installed, tmp_path, "-m", "astra_jax.cli", "sft", "configs/tiny_sft.toml")
    assert done.returncode == 2
    assert str(installed / "astra_jax" / "configs" / "tiny_sft.toml") in done.stderr
    assert list(tmp_path.iterdir()) == []
