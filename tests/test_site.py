"""The site builds strictly and without the network; its reference has every key and every function of the interface."""

from __future__ import annotations

import html
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import astra_jax
from astra_jax.cli.config import KINDS, config_types
from astra_jax.config_keys import keys_of
from tests.guides import GUIDES, ROOT

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", out]
    nowhere = {"http_proxy": "http://127.0.0.1:9", "https_proxy": "http://127.0.0.1:9", "NO_MKDOCS_2_WARNING": "1"}
    environment = {**os.environ, **nowhere, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    return out


def test_the_reference_names_every_key_with_its_type_and_meaning(site):
    text = html.unescape(re.sub(r"<[^>]+>", "\n", (site / "reference" / "configs.html").read_text(encoding="utf-8")))
    lines = {line.strip() for line in text.splitlines()}
    for kind in KINDS:
        for config_type in config_types(kind).values():
            for key in keys_of(config_type):
                assert (f"[{key.path}]" if key.is_table else key.path) in lines
                assert key.kind in text


def test_the_python_reference_has_the_whole_interface(site):
    text = (site / "reference" / "python.html").read_text(encoding="utf-8")
    assert [name for name in astra_jax.__all__ if f'id="astra_jax.recipes.interface.{name}"' not in text] == []


def test_every_guide_is_a_page_and_nothing_is_fetched_from_elsewhere(site):
    names = ["index" if path.stem == "README" else path.stem for path in GUIDES]
    assert [name for name in names if not (site / "guides" / f"{name}.html").exists()] == []
    for page in site.rglob("*.html"):
        fetched = re.findall(
            r'<(?:script|link|img)[^>]+(?:src|href)="(https?:[^"]+)"', page.read_text(encoding="utf-8")
        )
        assert fetched == [], page
