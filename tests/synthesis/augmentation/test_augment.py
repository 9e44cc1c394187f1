"""A record directory is augmented whole: proven, resumable, the same bytes, and on the same side of every split."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import pytest

from astra_jax.cli.command import main
from astra_jax.config import ConfigError
from astra_jax.evaluate.baselines import evaluate_baseline
from astra_jax.evaluate.environments import EvaluationConfig
from astra_jax.rl.config import HeldOutConfig, RLConfig
from astra_jax.rl.held_out import held_out_environments
from sandbox.client import AsyncSandboxClient
from synthesis.augmentation import augment as augment_module
from synthesis.augmentation.augment import AUGMENTATION_KINDS, augment_records, augmented_beside
from synthesis.environments.pipeline import synthesize_environments
from synthesis.environments.selection.splits import TakenValues, shared_between
from synthesis.environments.verification import verify_environments
from synthesis.procedural.teacher import ProceduralTeacher
from synthesis.questions.decomposition import QAInstance
from synthesis.record_io import RecordDirectoryError, RecordSource, read_card, write_records
from synthesis.records import AugmentationKind, Environment
from synthesis.run.fingerprint import MadeOtherwise
from synthesis.stage import NothingKept, StageReport
from tests.synthesis.environments.conftest import tiny_config

COUNT = 24
ALL: Mapping[AugmentationKind, float] = dict.fromkeys(AUGMENTATION_KINDS, 1.0)


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory, sandbox_url: str) -> Path:
    out = tmp_path_factory.mktemp("augment") / "source"
    varieties = {"plain": 0.7, "stateful": 0.1, "withheld_tool": 0.1, "missing_parameter": 0.1}
    config = tiny_config(seed=8, count=COUNT, out=out, varieties=varieties, scaled_documents=0.5)
    asyncio.run(synthesize_environments(config, ProceduralTeacher(), sandbox_url))
    return out


@pytest.fixture(scope="module")
def augmented(source: Path, sandbox_url: str) -> Path:
    out = augmented_beside(source)
    report = asyncio.run(augment_records(source, out, ALL, seed=0, sandbox_url=sandbox_url))
    assert report.read == 4 * COUNT
    assert report.kept + report.rejected.total() == report.read
    return out


def shards(directory: Path) -> list[bytes]:
    return [(directory / name).read_bytes() for name in sorted(read_card(directory).shards)]


def test_every_variant_passes_the_proof_of_a_new_environment(source: Path, augmented: Path, sandbox_url: str) -> None:
    environments = list(RecordSource(augmented, Environment))
    kinds = Counter(each.augmentation.kind if each.augmentation else "none" for each in environments)
    assert kinds["none"] == COUNT
    assert kinds["more_tools"] == COUNT
    plain = sum(each.state is None and each.expectation == "answer" for each in RecordSource(source, Environment))
    assert kinds["unreliable_tools"] >= plain
    assert kinds["indirect_wording"] >= 0.9 * plain
    assert kinds["derived_argument"] >= 0.6 * plain
    count = len(environments)
    assert asyncio.run(verify_environments(augmented, sandbox_url)).closing_line() == f"verified {count}/{count}"


def test_a_variant_follows_its_source_which_stays_as_it_was(source: Path, augmented: Path) -> None:
    last = None
    kept = []
    for environment in RecordSource(augmented, Environment):
        if environment.augmentation is None:
            last = environment
            kept.append(environment)
        else:
            assert last is not None
            assert environment.origin == last.id
            assert environment.answer == last.answer
    assert kept == list(RecordSource(source, Environment))


def test_a_run_that_is_killed_goes_on_to_the_same_bytes(
    source: Path, augmented: Path, tmp_path: Path, sandbox_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, made = tmp_path / "out", 0
    make_variant = augment_module.make_variant

    async def dies(*args: object, **kwargs: object) -> Environment:
        nonlocal made
        made += 1
        if made == 20:
            raise KeyboardInterrupt
        return await make_variant(*args, **kwargs)  # type: ignore[arg-type]

    def run() -> str:
        return asyncio.run(augment_records(source, out, ALL, seed=0, sandbox_url=sandbox_url)).closing_line()

    monkeypatch.setattr(augment_module, "make_variant", dies)
    with pytest.raises(KeyboardInterrupt):
        run()
    assert not out.exists()
    run()
    assert made < 4 * COUNT + 20  # what was finished is not made again
    assert shards(out) == shards(augmented)
    assert not list(tmp_path.glob("*.sqlite*"))
    assert "already complete" in run()


def test_other_shares_are_another_result_and_no_share_changes_what_another_kind_draws(
    source: Path, augmented: Path, tmp_path: Path, sandbox_url: str
) -> None:
    with pytest.raises(MadeOtherwise, match=r"augmentation\.more_tools"):
        asyncio.run(augment_records(source, augmented, {**ALL, "more_tools": 0.5}, seed=0, sandbox_url=sandbox_url))
    half: Mapping[AugmentationKind, float] = {"more_tools": 0.5}
    drawn = []
    for name, shares in {"alone": half, "beside": {**half, "indirect_wording": 0.25}}.items():
        asyncio.run(augment_records(source, tmp_path / name, shares, seed=0, sandbox_url=sandbox_url))
        found = [each.augmentation for each in RecordSource(tmp_path / name, Environment)]
        drawn.append([each.source for each in found if each and each.kind == "more_tools"])
    assert drawn[0] == drawn[1]
    assert len(drawn[0]) == COUNT // 2


def test_what_was_augmented_already_gets_no_variant_twice(source: Path, tmp_path: Path, sandbox_url: str) -> None:
    few = list(RecordSource(source, Environment))[:6]
    write_records(tmp_path / "few", few, kind="environment")
    shares: Mapping[AugmentationKind, float] = {"unreliable_tools": 1.0, "indirect_wording": 1.0}

    def augment(directory: Path, out: Path, seed: int) -> tuple[StageReport, list[str]]:
        report = asyncio.run(augment_records(directory, out, shares, seed=seed, sandbox_url=sandbox_url))
        return report, [each.id for each in RecordSource(out, Environment)]

    _, once = augment(tmp_path / "few", tmp_path / "once", 0)
    with pytest.raises(NothingKept, match="there already"):
        augment(tmp_path / "once", tmp_path / "twice", 0)
    report, other = augment(tmp_path / "once", tmp_path / "other", 1)  # what another seed makes is another variant
    assert report.kept > 0
    assert len(set(other)) == len(other) > len(set(once)) == len(once)


def test_a_split_apart_from_the_sources_is_apart_from_their_variants(
    source: Path, augmented: Path, tmp_path: Path, sandbox_url: str
) -> None:
    taken = TakenValues([augmented])
    for environment in RecordSource(source, Environment):  # the variants know all of their sources
        instance = QAInstance(
            question="?",
            answer=environment.answer,
            scenario=environment.scenario,
            hops=environment.hops,
            nodes=(),
            composition=None,
            entities=environment.entities,
        )
        assert taken.shared_with(instance)
    config = tiny_config(seed=9, count=12, out=tmp_path / "held_out", disjoint_from=(source,))
    asyncio.run(synthesize_environments(config, ProceduralTeacher(), sandbox_url))
    held_out = augmented_beside(config.out)
    asyncio.run(augment_records(config.out, held_out, ALL, seed=0, sandbox_url=sandbox_url))
    shared = shared_between(held_out, augmented)
    assert (shared.entities, shared.answers) == (0, 0)


def test_a_variant_of_what_is_learnt_from_is_not_held_out(source: Path, augmented: Path, tmp_path: Path) -> None:
    variants = [each for each in RecordSource(augmented, Environment) if each.augmentation is not None][:3]
    write_records(tmp_path / "variants", variants, kind="environment")
    run = RLConfig.model_construct(environments=source, seed=0)
    with pytest.raises(ConfigError, match="does not learn from, found 3 of 3"):
        held_out_environments(run, HeldOutConfig(environments=tmp_path / "variants", every_steps=1))


def test_a_matcher_of_words_is_led_astray_by_other_words(augmented: Path, sandbox_url: str, tmp_path: Path) -> None:
    environments = list(RecordSource(augmented, Environment))
    worded = [each for each in environments if each.augmentation and each.augmentation.kind == "indirect_wording"]
    sources = [each for each in environments if each.id in {variant.origin for variant in worded}]
    config = EvaluationConfig.model_validate(
        {
            "environments": augmented,
            "policy": tmp_path,
            "out": tmp_path / "out",
            "seed": 0,
            "rollout": {"max_prompt_tokens": 1, "max_response_tokens": 1, "max_turns": 8},
        }
    )

    async def share_solved(of: list[Environment]) -> float:
        async with AsyncSandboxClient(sandbox_url) as sandbox:
            evaluation = await evaluate_baseline("lexical", of, config, sandbox)
        counts = [episode.counts for group in evaluation.groups for episode in group]
        return sum(each.num_solved for each in counts) / sum(each.num_subtasks for each in counts)

    assert len(worded) > COUNT / 2
    assert asyncio.run(share_solved(sources)) > 0.6  # it sets no optional parameter, which some of them need
    assert asyncio.run(share_solved(worded)) < 0.1


def test_the_section_of_a_config_augments_what_the_run_made(
    tmp_path: Path, sandbox_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    config = Path(__file__).parents[3] / "configs/tiny_environments.toml"
    command = ["synthesize", "environments", str(config), f"out={tmp_path}/out", "count=4", "--sandbox", sandbox_url]
    assert main([*command, "--json"]) == 0
    before = shards(tmp_path / "out")
    assert main([*command, "augmentation.unreliable_tools=1.0", "--json"]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(line["stage"], line["read"]) for line in lines[-2:]] == [("augmentation", 4), ("environments", 4)]
    assert lines[-1]["already_complete"]
    assert shards(tmp_path / "out") == before
    assert len(RecordSource(augmented_beside(tmp_path / "out"), Environment)) == 8


def test_the_command_augments_any_directory(
    source: Path, tmp_path: Path, sandbox_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    out = ["--out", str(tmp_path / "out"), "--sandbox", sandbox_url]
    assert main(["records", "augment", str(source), "--kind", "more_tools", "--share", "0.25", *out]) == 0
    assert "kept 6 of 6" in capsys.readouterr().out
    assert main(["records", "augment", str(source), "--share", "1.5", *out]) == 2
    assert "expected a share above 0 and up to 1, found '1.5'" in capsys.readouterr().err


def test_nothing_to_augment_is_said_in_one_line(tmp_path: Path, source: Path, sandbox_url: str) -> None:
    with pytest.raises(RecordDirectoryError, match="expected a record directory"):
        asyncio.run(augment_records(tmp_path, tmp_path / "out", ALL, seed=0, sandbox_url=sandbox_url))
    with pytest.raises(NothingKept, match="at least one environment"):
        asyncio.run(augment_records(source, tmp_path / "out", {}, seed=0, sandbox_url=sandbox_url))
    assert not (tmp_path / "out").exists()
