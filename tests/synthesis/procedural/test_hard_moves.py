"""Hard stateful tasks: short questions in other words than the documents have, for moves that fit the funds."""

from __future__ import annotations

import pytest

from synthesis.procedural.stateful import write_stateful_task
from synthesis.procedural.table_worlds import world_about
from synthesis.prompts.stateful import StatefulTask, WriteStatefulTask
from synthesis.questions.knowledge import Knowledge
from synthesis.records import Language, Scenario

DOMAINS = ("library", "dining", "finance", "logistics")


def written(language: Language, scenario: Scenario, num_lookups: int, seed: int) -> tuple[StatefulTask, set[str]]:
    """Return a task, and the words of its world for types of entities, such as "library"."""
    knowledge = Knowledge(domain=DOMAINS[seed % len(DOMAINS)], language=language, difficulty="hard", seed=seed)
    asked = WriteStatefulTask(knowledge=knowledge, scenario=scenario, num_lookups=num_lookups)
    hard = world_about(knowledge).hard
    assert hard is not None
    return write_stateful_task(asked, seed), {word for kind in hard.kinds.values() for word in kind.split()}


@pytest.mark.parametrize("language", ["en", "zh"])
@pytest.mark.parametrize(
    ("scenario", "num_lookups", "most"),
    [("multi_hop", 5, 50), ("parallel_multi_hop", 6, 50), ("parallel_multi_hop", 8, 50), ("multi_hop", 2, 45)],
)
def test_the_question_is_short_names_what_is_needed_and_shares_no_word_with_the_documents(
    language: Language, scenario: Scenario, num_lookups: int, most: int
) -> None:
    drawn = [written(language, scenario, num_lookups, seed) for seed in range(30)]
    tasks = [task for task, _ in drawn]
    for task, kinds in drawn:
        question = task.instance.question
        assert len(question.split()) <= most, question
        for call in task.calls[:-1]:
            assert all(str(value) in question for value in call.arguments.values())
        words = set(question.lower().replace(".", "").replace(",", "").split()) - kinds
        for tool in task.tools:
            # The words of a document with six letters or more are content words.
            said = f"{tool.document.name.replace('_', ' ')} {tool.document.description}".lower().split()
            assert not {word for word in said if len(word) > 5} & words, (question, tool.document)
    assert len({task.tools[0].document.name.partition("_")[0] for task in tasks}) > 2
    assert len({task.tools[0].document.required for task in tasks}) > 2
