"""Masked texts are counted once, however often their names and numbers change."""

from __future__ import annotations

from astra_jax.testing import tiny_environment
from synthesis.diversity import DiversityCounter, skeleton
from synthesis.records import Environment


def asked(question: str, *entities: str) -> Environment:
    return tiny_environment().model_copy(update={"question": question, "entities": entities})


def test_names_numbers_and_codes_are_masked_the_longest_name_first():
    text = "Is Amber Fox Inn, not Amber Fox, on 2024-01-31 worth 12,500.50 or AB1234?"
    assert skeleton(text, ["Amber Fox", "Amber Fox Inn"]) == "Is □, not □, on □ worth □ or □?"
    assert skeleton("公寓青山明月的月租金是3000吗？", ["青山明月"]) == "公寓□的月租金是□吗？"


def test_a_question_about_another_name_is_no_other_question():
    counter = DiversityCounter()
    for name in ("Old Mill", "Red Barn"):
        counter.add_environment(asked(f"What is the rent of {name}?", name))
    counter.add_environment(asked("How much is Old Mill?", "Old Mill"))
    counted = counter.result()
    assert (counted.questions, counted.question_skeletons) == (3, 2)
    assert counted.vocabulary == {"en": 7}  # different words of both skeletons
    assert counted.word_pairs == 4 + 2
    assert counted.tool_sets == 1
    assert counted.tool_names == len(set(tool_names(tiny_environment())))


def tool_names(environment: Environment) -> list[str]:
    return [task.call.name for task in environment.sub_tasks if task.call]
