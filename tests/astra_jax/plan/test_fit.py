"""`astra plan --fit`: the quickest layout that fits is written into the config, and nothing else changes."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from astra_jax.config import ConfigError, load_config
from astra_jax.model.sharding import MeshConfig
from astra_jax.plan import fit as fit_module
from astra_jax.plan.fit import Layout, written
from astra_jax.plan.plan import load_run_config
from astra_jax.rl.config import RLConfig
from tests.astra_jax.plan.test_plan import TINY, in_process_of_its_own
from tests.tpu_compiler import needs_tpu_compiler

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize("name", ["paper_rl_14b", "paper_rl_32b", "paper_sft_14b", "host_rl", "chip_sft"])
def test_a_written_config_is_the_old_one_in_another_layout(name, tmp_path):
    path = ROOT / "configs" / f"{name}.toml"
    config, text = load_run_config(path), path.read_text()
    changes = {
        "mesh": MeshConfig(fsdp=16, context=4),
        "accumulation": 2,
        "model_overrides": config.model_overrides.model_copy(update={"remat": "offload"}),
    }
    if isinstance(config, RLConfig):
        changes |= {"rollout_mesh": MeshConfig(data=8, tensor=8), "optimizer_waits_on_host": True}
        changes["rollout"] = config.rollout.model_copy(update={"kv_share": 0.25})
    fitted = config.model_copy(update=changes)
    (tmp_path / "fitted.toml").write_text(written(text, fitted, "v5p:4x4x4"))
    assert load_run_config(tmp_path / "fitted.toml") == fitted
    kept = (tmp_path / "fitted.toml").read_text().splitlines()
    assert kept[: len(text.splitlines()[:6])] == text.splitlines()[:6], "the head stays"
    assert "# By `astra plan --fit` for v5p:4x4x4:" in kept
    assert written("\n".join(kept), fitted, "v5p:4x4x4").count("mesh = ") <= 2


def test_a_key_that_the_file_does_not_have_is_not_lost():
    path = ROOT / "configs" / "paper_rl_14b.toml"
    overridden = load_config(RLConfig, path, ["seed=7"], is_fetched=False)
    with pytest.raises(ConfigError, match="has keys that its file does not"):
        written(path.read_text(), overridden, "v5p:4x4x4")


def test_the_quickest_that_fits_is_chosen_and_one_that_copies_moments_comes_last(monkeypatch):
    config = load_run_config(ROOT / "configs" / "paper_sft_14b.toml")
    peaks = {"on_host": 1, "quick": 90, "quicker": 120, "waits": 50, "slow": 10, "huge": 0}

    class Step:
        def __init__(self, words: str):
            self.peak_bytes, self.host_bytes = peaks[words], 50 if words == "on_host" else 0

    compiled: list[str] = []

    def layout(words: str, seconds: float, known: int, **changes: object) -> Layout:
        return Layout(words, {"out": Path(words), **changes}, seconds, known)

    monkeypatch.setattr(fit_module, "devices_of", lambda _: [])
    monkeypatch.setattr(fit_module, "learner_of", lambda changed, _: {"sft": changed.out.name})

    def plan_step(_: str, words: str, *__: object) -> Step:
        compiled.append(words)
        return Step(words)

    monkeypatch.setattr(fit_module, "plan_step", plan_step)
    layouts = [
        layout("slow", 9.0, 1),
        layout("waits", 2.0, 1, optimizer_waits_on_host=True),
        layout("quick", 2.001, 5),
        layout("quicker", 1.0, 5),
        layout("on_host", 1.5, 5),
        layout("huge", 0.5, 101),
    ]
    chip: Any = SimpleNamespace(host_bytes=40)
    chosen, lines = fit_module._first_that_fits(config, layouts, "v5p:4x4x4", chip, 100)
    assert chosen.out == Path("quick")
    assert compiled == ["quicker", "on_host", "quick"]
    assert [line.partition(":")[0] for line in lines] == ["huge", "quicker", "on_host", "quick"]
    with pytest.raises(ConfigError, match=r"no layout that was tried fits .*huge: .*does not fit; take more chips"):
        fit_module._first_that_fits(config, layouts[-1:], "v5p:4x4x4", chip, 100)


_FIT = """
import json, sys
from pathlib import Path
from astra_jax.plan.fit import fitted
from astra_jax.plan.plan import load_run_config, plan
before = load_run_config(Path(sys.argv[1]))
after, lines = fitted(before, sys.argv[2])
print(json.dumps([lines, *(plan(each, sys.argv[2]).to_json() for each in (before, after))]))
"""


@pytest.mark.slow
@needs_tpu_compiler
def test_a_fitted_run_fits_and_is_not_slower_than_the_layout_that_it_replaces(tmp_path):
    config = tmp_path / "plan.toml"
    config.write_text(TINY)
    said = in_process_of_its_own(_FIT, str(config), "v5e:2x2", XDG_CACHE_HOME=str(tmp_path))
    lines, before, after = json.loads(said.splitlines()[-1])
    assert sum(line.endswith("chosen") for line in lines) == 2
    assert after["fits"]
    for step in ("rl_learner", "decode"):
        seconds = [max(each["steps"][step]["roofline_seconds"].values()) for each in (after, before)]
        assert seconds[0] <= seconds[1] * 1.01
