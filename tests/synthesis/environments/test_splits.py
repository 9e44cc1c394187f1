"""Held-out environments share nothing with training that their split excludes, with any teacher."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import pytest

from astra_jax.testing import tiny_environment
from sandbox.client import AsyncSandboxClient
from synthesis.environments.config import Variety, held_out_configs
from synthesis.environments.pipeline import synthesize_environments
from synthesis.environments.proving.call_batches import CallBatches
from synthesis.environments.selection.quotas import EnvironmentPlan
from synthesis.environments.selection.splits import TakenValues, shared_between
from synthesis.environments.worker import EnvironmentsWorker
from synthesis.procedural.teacher import ProceduralTeacher
from synthesis.procedural.tool_wording import KNOWN, UNSEEN
from synthesis.procedural.worlds import domains
from synthesis.questions.decomposition import QAInstance
from synthesis.questions.knowledge import Knowledge
from synthesis.record_io import write_records
from synthesis.stage import Rejected
from tests.synthesis.altered import altered
from tests.synthesis.environments.made import all_kept, read, tiny_config, verdict

TOOLS = ("tool_names", "tool_documents", "tool_wordings")
DOMAINS = {"real_estate": 0.3, "ecommerce": 0.25, "healthcare": 0.25, "education": 0.2}
VARIETIES: Mapping[Variety, float] = {"plain": 0.8, "stateful": 0.2}


@pytest.fixture(scope="module")
def held_out(tmp_path_factory, here):
    """A training split of every variety of tool, and a few environments of three splits that are held out from it."""
    training = tiny_config(
        seed=1, count=24, out=tmp_path_factory.mktemp("held_out") / "training", domains=DOMAINS, varieties=VARIETIES
    )
    further = held_out_configs(training)
    for config in (training, *further.values()):
        all_kept(altered(config, count=24 if config is training else 12), here)
    return {"training": training.out, **{name: config.out for name, config in further.items()}}


@pytest.mark.parametrize(
    ("split", "levels"),
    [
        ("heldout", ("entities", "answers")),
        ("heldout_tools", ("entities", "answers", *TOOLS)),
        ("heldout_domains", ("domains", *TOOLS)),
    ],
)
def test_a_split_shares_nothing_of_its_level_with_the_training(held_out, split, levels):
    shared = shared_between(held_out[split], held_out["training"])
    assert not any(shared[level] for level in levels)
    assert shared["domains"] == (0 if "domains" in levels else len(DOMAINS))
    assert any(shared[level] for level in TOOLS) is (split == "heldout")


def test_held_out_splits_are_environments_like_any_other(held_out, sandbox_url):
    for name in ("heldout_tools", "heldout_domains"):
        assert verdict(held_out[name], sandbox_url) == "verified 12/12"
        found = read(held_out[name])
        assert sum(environment.state is not None for environment in found) == 2
        assert all(environment.irrelevant_tools for environment in found)
        assert {environment.language for environment in found} == {"en", "zh"}
        assert all("unseen-tools" in environment.provenance.prompt_version for environment in found)
    assert {each.domain for each in read(held_out["heldout_domains"])} == set(domains()) - set(DOMAINS)


class HabitualTeacher(ProceduralTeacher):
    """Has one way to name tools for every request."""

    async def ask(self, request, *, seed):
        knowledge = getattr(request, "knowledge", None)
        if knowledge is not None:
            seen = altered(knowledge, unseen="worlds")
            request = altered(request, knowledge=seen)
        return await super().ask(request, seed=seed)


@pytest.mark.parametrize(
    ("unseen", "reason"), [("tools", "tool of another split"), ("domains", "domain of another split")]
)
def test_an_environment_that_would_share_is_rejected(unseen, reason, held_out, tmp_path, here):
    config = tiny_config(
        seed=5,
        count=4,
        out=tmp_path / "out",
        scenarios={"single_hop": 0.75, "multi_hop": 0.25},
        domains={"healthcare": 0.5, "travel": 0.5},
        varieties=VARIETIES,
        disjoint_from=(held_out["training"],),
        unseen=unseen,
    )
    report = asyncio.run(synthesize_environments(config, HabitualTeacher(), here))
    assert report.kept > 0
    assert report.rejected[reason] >= 2, report.closing_line()
    shared = shared_between(config.out, held_out["training"])
    assert not any(shared[level] for level in TOOLS)


async def test_tools_that_are_known_late_are_checked_when_they_are_known(held_out, tmp_path, sandbox_url):
    """A document that is written with the proof, and a distractor that comes with the mixing."""
    config = tiny_config(seed=9, count=1, out=tmp_path / "out")
    plan = EnvironmentPlan(0, "single_hop", "en", "healthcare", 1, with_computation=False, variety="plain")
    source = Knowledge(domain="healthcare", language="en")
    taken = TakenValues((held_out["training"],), "tools")

    async with AsyncSandboxClient(sandbox_url) as client:
        sandbox = CallBatches(client)
        careless = EnvironmentsWorker(config, TakenValues(()), sandbox, ProceduralTeacher())
        careful = EnvironmentsWorker(config, taken, sandbox, ProceduralTeacher())
        draft = await careless.draft(plan, source)
        with pytest.raises(Rejected, match="tool of another split"):
            await careful.prove(plan, draft, source)
        trained, unseen = (read(held_out[name])[0] for name in ("training", "heldout_tools"))
        await careful.replay(unseen)
        with pytest.raises(Rejected, match="tool of another split"):
            await careful.replay(altered(unseen, irrelevant_tools=trained.irrelevant_tools))


def question(*answers: object, answer: object = 7, entities: tuple[str, ...] = ()) -> QAInstance:
    """A question with an answer, entities, and sub-questions with these answers."""
    nodes = [{"id": f"q{place}", "question": "?", "answer": given} for place, given in enumerate(answers)]
    asked = {"question": "?", "scenario": "single_hop", "hops": 1, "composition": None}
    return QAInstance.model_validate({**asked, "answer": answer, "nodes": nodes, "entities": entities})


def test_entities_and_answers_of_another_split_are_taken_whether_upper_or_lower_case(tmp_path):
    # About the owner of Amber Falcon, which costs 2150.
    write_records(tmp_path / "other", [tiny_environment()], kind="environment")
    taken = TakenValues([tmp_path / "other"])
    for asked, shared in (
        (question(7, entities=("Nobody",)), set()),
        (question(2150), {"2150"}),
        (question(7, answer=[5, "amber falcon"]), {"amber falcon"}),
        (question(7, entities=("JADE OTTER", "2150")), {"jade otter", "2150"}),
        (question(True), set()),
    ):
        assert taken.shared_with(asked) == shared


def test_tools_and_domains_are_taken_if_they_must_be_unseen(tmp_path):
    other = tiny_environment()
    write_records(tmp_path / "other", [other], kind="environment")
    renamed = altered(other.tools[0].document, name="seek_flat")
    found = {}
    for unseen in ("worlds", "tools", "domains"):
        taken = TakenValues([tmp_path / "other"], unseen)
        found[unseen] = (taken.shared_tools([renamed]), taken.has_domain("Real Estate"), taken.has_domain("travel"))
    wording = {"find the flat of an owner.", "owner"}
    assert found == {
        "worlds": (set(), False, False),
        "tools": (wording, False, False),
        "domains": (wording, True, False),
    }


def test_the_embedded_teacher_has_other_words_for_the_tools_of_every_domain():
    def words(types_by_domain):
        types = [(name, fields) for listed in types_by_domain.values() for name, fields in listed.items()]
        english = [word for name, fields in types for word in (name, *fields.attributes)]
        chinese = [label for _, fields in types for label in (fields.zh, *(zh for zh, _ in fields.attributes.values()))]
        return english + chinese

    seen, unseen = words(domains()), words(domains("tools"))
    assert set(domains("tools")) == set(domains("domains")) == set(domains())
    assert len(set(unseen)) == len(unseen)
    assert not set(seen) & set(unseen)
    for name, types in domains("tools").items():
        assert {relation for fields in types.values() for relation in fields.relations} == set(types), name
    parameters = [{wording.year, wording.source, wording.target, wording.amount} for wording in (KNOWN, UNSEEN)]
    assert not parameters[0] & parameters[1]
