"""Reworded environments are proven with their siblings, of known and of unseen tools."""

from __future__ import annotations

import pytest

from synthesis.procedural.reworded import SIBLINGS
from synthesis.records import IrrelevantTool
from tests.synthesis.altered import altered
from tests.synthesis.environments.made import all_kept, faults, read, tiny_config


@pytest.fixture(scope="module")
def splits(tmp_path_factory, here):
    out = tmp_path_factory.mktemp("reworded")
    fields = {"count": 6, "difficulty": "reworded", "irrelevant_per_band": {"high": 4}}
    training = all_kept(tiny_config(seed=1, out=out / "training", **fields), here)
    unseen = {"unseen": "tools", "disjoint_from": [str(training)]}
    return read(training), read(all_kept(tiny_config(seed=2, out=out / "unseen", **fields, **unseen), here))


def test_each_tool_that_is_called_has_siblings_that_take_its_names(splits):
    for environment in (each for split in splits for each in split):
        for tool in environment.tools:
            required = [each.tool.document.required for each in environment.irrelevant_tools]
            assert required.count(tool.document.required) >= SIBLINGS - 1


def test_they_verify_and_a_distractor_that_answers_does_not(splits, tmp_path, sandbox_url):
    training, unseen = splits
    assert faults(tmp_path / "kept", sandbox_url, *training[::3], unseen[0]) == []
    environment = training[0]
    own = environment.tools[0]
    name = f"{own.document.name}_too"
    twin = altered(
        own,
        document=altered(own.document, name=name),
        source=own.source.replace(f"def {own.document.name}(", f"def {name}("),
    )
    _, *others = environment.irrelevant_tools
    answers = IrrelevantTool(tool=twin, band="high", similarity=1.0, arguments=environment.sub_tasks[0].call.arguments)
    changed = altered(environment, irrelevant_tools=(answers, *others))
    assert faults(tmp_path / "twin", sandbox_url, changed) == ["distractor answers"]
