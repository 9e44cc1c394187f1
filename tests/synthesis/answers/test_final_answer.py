"""A final message tells the gold answer only if the whole answer is in it, and not as one of many."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator
from itertools import islice

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from synthesis.answers.final_answer import holds_answer, is_answer_accurate
from synthesis.procedural.world_questions import draw_instance
from synthesis.procedural.worlds import domains, world_of
from synthesis.records import (
    Composition,
    Environment,
    JsonValue,
    Language,
    Provenance,
    QualityScore,
    Scenario,
    SubQuestion,
)
from synthesis.teacher.protocol import BadReply

SHAPES: list[tuple[Scenario, int]] = [
    ("single_hop", 1), ("parallel_single_hop", 2), ("multi_hop", 3), ("parallel_multi_hop", 4),
    ("parallel_multi_hop", 8),
]  # fmt: skip


def question_of(answer: object, **fields: object) -> Environment:
    """An environment with a question and an answer, and no tools: nothing else is read here."""
    defaults = {
        "id": f"e-{answer}",
        "domain": "d",
        "language": "en",
        "scenario": "single_hop",
        "hops": 1,
        "question": "What is it?",
        "answer": answer,
        "sub_questions": (SubQuestion(id="q1", question="What is it?", answer=answer),),
        "tools": (),
        "quality": QualityScore(dependency_consistency=1, atomicity=1, sequential_rationality=1, task_completeness=1),
        "provenance": Provenance(teacher="hand-written", prompt_version="none", seed=0),
    }
    return Environment.model_validate({**defaults, **fields})


def drawn_environments() -> Iterator[Environment]:
    """Questions of every domain, language, shape and composition, as the embedded teacher asks them."""
    languages: tuple[Language, ...] = ("en", "zh")
    for seed in range(100):
        for language in languages:
            rng = random.Random(f"{seed}/{language}")
            scenario, num_lookups = SHAPES[seed % len(SHAPES)]
            domain = rng.choice(sorted(domains()))
            try:
                instance = draw_instance(
                    world_of(domain, language, seed, None, "worlds", "hard" if seed % 3 == 0 else "plain"),
                    rng, scenario, num_lookups,
                    with_computation="parallel" in scenario and seed % 2 == 0, max_hops=4,
                )  # fmt: skip
            except BadReply:
                continue
            yield question_of(
                instance.answer,
                id=f"{seed}-{language}",
                language=language,
                question=instance.question,
                composition=instance.composition,
                entities=instance.entities,
                sub_questions=tuple(
                    SubQuestion(id=node.id, question=node.question, answer=node.answer, depends_on=node.depends_on)
                    for node in instance.nodes
                ),
            )


@pytest.fixture(scope="module")
def environments():
    drawn = list(islice(drawn_environments(), 200))
    operations = {environment.composition.operation for environment in drawn if environment.composition}
    assert len(drawn) >= 190
    assert operations == set(Composition.model_fields["operation"].annotation.__args__)
    return drawn


def test_every_gold_final_message_tells_the_gold_answer(environments):
    missed = [each for each in environments if not is_answer_accurate(each, each.gold_messages()[-1].content)]
    assert missed == []


def test_the_answer_to_another_question_is_not_the_answer_to_this_one(environments):
    shifted = [environments[shift:] + environments[:shift] for shift in (1, 2, 3, 30, 100)]
    pairs = [pair for others in shifted for pair in zip(environments, others, strict=True)]
    wrong = [pair for pair in pairs if is_answer_accurate(pair[0], pair[1].gold_messages()[-1].content)]
    assert len(wrong) <= len(pairs) / 1000, [(a.question, b.gold_messages()[-1].content) for a, b in wrong[:5]]


def test_all_that_the_tools_of_a_whole_chain_said_is_no_choice_among_them(environments):
    """Every value of the environment, said without saying which: never an answer where the answer is one of them."""
    choosing = [each for each in environments if each.composition and "est" in each.composition.operation]
    assert len(choosing) > 10
    for environment in choosing:
        assert environment.composition is not None
        candidates = environment.composition.choices or [each.answer for each in environment.sub_questions]
        assert len(set(candidates)) > 1, environment
        assert not is_answer_accurate(environment, f"The answer is one of {', '.join(map(str, candidates))}.")


@given(
    st.integers(-(10**9), 10**9),
    st.sampled_from(["The answer is {}.", "答案是{}。", "{}", "**{}** km", "It costs {}元，谢谢", "= {}\n", "({})"]),
    st.booleans(),
)
def test_a_number_is_found_with_its_separators_and_unit(number, sentence, with_separators):
    said = sentence.format(f"{number:,}" if with_separators else number)
    assert holds_answer(said, number)
    assert holds_answer(said, float(number))
    assert not holds_answer(said, number + 1 if abs(number) < 1000 else number + number // 1000)


@given(
    st.integers(0, 10**6),
    st.sampled_from("0123456789"),
    st.sampled_from(["{d}{n}", "{n}{d}", "{n}.{d}5", "{d}.{n}", "W{n}", "{n}-{n}"]),
)
def test_a_number_is_not_found_inside_another_value(number, digit, form):
    said = form.format(n=number, d=digit)
    with contextlib.suppress(ValueError):
        assume(float(said) != number)
    assert not holds_answer(f"error code {said}", number)


@given(st.lists(st.integers(0, 10**6), min_size=5, max_size=12, unique=True), st.data())
def test_a_message_that_lists_many_numbers_answers_with_none(numbers, data):
    gold = data.draw(st.sampled_from(numbers))
    assert not holds_answer(f"It may be {', '.join(map(str, numbers))}.", gold)
    assert holds_answer(f"It may be {', '.join(map(str, numbers))}.", gold, question=f"Is it {numbers}?")


@given(st.lists(st.one_of(st.integers(0, 10**6), st.sampled_from(["MK5118", "2015-07-24", "Amber Fox"])), min_size=1))
def test_of_a_list_every_item_must_stand_there(items):
    assert holds_answer("They are " + " and ".join(map(str, items)), items)
    others = [item for item in items if item != items[-1]]
    assert not holds_answer("They are " + " and ".join(map(str, others)), items)


@pytest.mark.parametrize(
    ("gold", "text", "holds"),
    [
        (5, "There are 5 rooms.", True), (5, "There are 1,500 rooms.", False), (5, "5-10 rooms", False),
        (5, "1. flat\n2. house\n5. boat", False), (20, "since 1996-03-20", False), (-5, "It is −5 °C.", True),
        (50_000, "5万元", True), (3_200_000, "about 3.2 million", True), (5, "5万元", False),
        (561.9, "The score is 561.90.", True), (561.9, "The score is 562.", False), (7, "9" * 10_000, False),
        (7, "7" + "9" * 10_000, False), ("Amber Falcon", "It is amber   FALCON's flat.", True),
        ("Amber Falcon", "It is Amber Falcons.", False), ("1784411", "Call 1784411.", True),
        ("1784411", "Call 1784411.5 or 21784411.", False), ("2015-07-24", "on 24 July 2015", True),
        ("2015-07-24", "July 24th, 2015", True), ("2015-07-24", "2015年7月24日入驻", True),
        ("2015-07-24", "24th of Jul 2015", True), ("2015-07-24", "24 Jun 2015", False),
        ("2015-07-24", "2015/7/24", True), ("2015-07-24", "on 2015-07-241", False), ("SB3718", "ＳＢ３７１８", True),
        (None, "The answer is null.", True), (None, "None of them.", False), ("", "anything", False),
        ([], "anything", False), ({"rent": 5, "owner": "Lee"}, "Lee pays 5.", True),
        ({"rent": 5, "owner": "Lee"}, "It is 5.", False), (True, "Yes, it does.", True),
        (True, "The answer is true.", True), (True, "答案是true。", True), (True, "是的，有。", True),
        (True, "It is yes or no.", False), (False, "No.", True), (False, "不是。", True),
        (False, "There is no such flat", False), (True, "答案是false。", False),
    ],
)  # fmt: skip
def test_a_text_that_stands_for_an_answer_is_chosen_narrowly(gold, text, holds):
    assert holds_answer(text, gold) is holds


TOLD: list[tuple[JsonValue, tuple[str, ...]]] = [
    ("5 km", ("It is 5 km away.", "It is 5,000 m, or 5 km.", "全程5公里左右", "全程5千米", "It is 5\nkilometres.")),
    ("5 m", ("长5米。",)), ("5 m2", ("It has 5 m².",)),
    ("5 m²", ("面积为5m2，朝南",)), ("30平方米", ("It has 30 square metres.",)), ("5 kWh", ("用电5千瓦时",)),
    ("5%", ("It rose by 5 percent.",)),
    ("5个百分点", ("It rose by 5 percentage points.",)),
    ("-5 °C", ("It was −5 ℃ at night.", "It was Minus 5 °C at night.", "夜间零下5℃。")),
    ("$5", ("It costs $5.", "It costs $5 per night.")), ("$1.5 million", ("It cost $1,500,000.",)),
    ("1500 USD", ("It is 1,500 USD/month.",)), ("5000元", ("月租5000元/月。",)), ("HK$5", ("It costs HK$5.",)),
    ("5 dollars", ("共$5",)), ("90 minutes", ("It takes 1.5 hours.",)),
    ("8 million people", ("Some 8,000,000 people live there.",)),
    ("3 bedrooms", ("A flat of 3 Bedrooms, and a kitchen.",)), ("3.10 LTS", ("It runs 3.10 lts.",)),
    ("8 million", ("It is 800万.",)), ("36 km/h", ("It goes at 10 m/s.",)), (5000000, ("It is 5百万.",)),
    (5000000000000, ("It is $5 trillion.",)), (500, ("5 hundred",)), (5000, ("共5千元",)),
    (5, ("全程5千米", "上升5百分点")), (110, ("1.1 hundred",)),
    ("2021-03-03", ("It was on Mar. 3, 2021.", "It was on 3 Mar. 2021")),
    ("2021-09-03", ("Sept 3, 2021", "3rd of Sept. 2021")), ("2021-05-03", ("May 3, 2021",)),
]  # fmt: skip
"""A gold answer, and messages that tell it."""
NOT_TOLD: list[tuple[JsonValue, tuple[str, ...]]] = [
    ("5 m", (
        "It is 5 miles away.", "It takes 5 minutes.", "It takes 5 min.", "It costs 5 M.", "5米/秒", "5 m2", "5 m²",
        "5 m^2", "5 square metres", "5平方米", "5立方米",
    )),
    ("$5", (
        "It costs HK$5", "It costs A$5.", "It costs US$5.", "It costs $5 CAD.", "It costs $5 trillion.",
        "It costs $5m.", "It costs $5 bn.", "It costs $5k.", "The balance is -$5.", "It costs $3-$5.",
    )),
    ("3 s", ("3 sets",)), ("3 tonnes", ("3 times",)), ("5 grams", ("5 gallons",)), ("5 t", ("5 trillion",)),
    ("5 g", ("It has a 5G network.",)), ("5 mg", ("It weighs 5 Mg.",)), ("500 km", ("12,500 km",)),
    ("5 km", ("1,5 km", "1.5 km", "5 km/h", "5 km per hour", "5公里/小时", "5公里每小时", "5–10 km")),
    ("5 °C", ("-5 °C", "5 °F", "零下5℃", "It was minus 5 °C.")), ("5 kg", ("5 kg/m2",)), ("5 m²", ("5 m³",)),
    ("5克", ("5克拉",)), ("5周", ("成立5周年",)), ("5元", ("5美元", "5日元", "5万元")),
    ("5%", ("It rose by 5 percentage points.", "上升5个百分点")), ("5 hours", ("5 hourglasses",)),
    ("1 hour", ("It takes 1 hour 30 minutes.",)), ("30分钟", ("需要1小时30分钟。",)), ("2 km", ("It is 5½ km.",)),
    ("3 bedrooms", ("13 bedrooms", "3 bathrooms")), ("3.1 LTS", ("It runs 3.10 LTS.",)),
    ("8 million people", ("8 million peoples",)),
    ("8 million", ("8 million and 8.1 million in 2021-01-01 and 2022, 2023, 2024", "8 billion")),
    (5, ("It is 5百万.", "It is 5 trillion.", "It costs 5M.", "It costs 5bn.", "共5千元", "It is 负5.")),
    (500, ("5 hundred thousand",)), ("10 km", ("5~10 km",)), ("10公里", ("5至10公里",)), (30000, ("3万5千",)),
    (5000, ("3万5千",)), (102, ("It is 10².",)), ("2021-03-03", ("Mar. 30, 2021", "May 3, 2021", "Mar. 3, 20210")),
]  # fmt: skip
"""A gold answer, and messages that do not tell it."""


def test_a_value_is_told_in_any_way_that_says_the_same():
    for gold, text in ((gold, text) for gold, texts in TOLD for text in texts):
        assert holds_answer(text, gold), (gold, text)


def test_a_value_is_not_told_by_another_that_looks_alike():
    for gold, text in ((gold, text) for gold, texts in NOT_TOLD for text in texts):
        assert not holds_answer(text, gold), (gold, text)


def test_an_abbreviated_month_ends_no_sentence():
    days = ["2021-03-03", "2021-04-04"]
    assert holds_answer("Elm is of Apr. 4, 2021. So it is Mar. 3, 2021.", days[0], candidates=days)
    assert holds_answer("Elm is of Apr. 4, 2021. So it is Sept. 3, 2021.", "2021-09-03", candidates=[days[1]])
    assert not holds_answer("It is Mar. 3, 2021. No, Apr. 4, 2021.", days[0], candidates=days)


def test_words_that_tell_the_answer_count_as_no_other_value():
    assert holds_answer("5 km, 5,000 m: at 1, 2 and 3.", "5 km")
    assert not holds_answer("5 km, 5,000 m: at 1, 2, 3 and 4.", "5 km")


def test_a_name_inside_a_longer_name_is_another_name():
    asked = question_of("竹园", entities=("竹园", "竹园编钟"))
    assert is_answer_accurate(asked, "答案是竹园。")
    assert not is_answer_accurate(asked, "答案是竹园编钟。")


def test_the_last_sentence_that_names_a_candidate_must_choose():
    asked = question_of(
        "Oak",
        question="Which is higher, Oak or Elm?",
        composition=Composition(operation="which_largest", inputs=("q1", "q2"), choices=("Oak", "Elm")),
        sub_questions=(SubQuestion(id="q1", question="?", answer=9), SubQuestion(id="q2", question="?", answer=7)),
    )
    assert is_answer_accurate(asked, "Oak has 9 and Elm 7. So it is Oak.")
    assert is_answer_accurate(asked, "It is Oak.")
    assert not is_answer_accurate(asked, "Oak or Elm.")
    assert not is_answer_accurate(asked, "Oak has 9. So it is Elm.")


@given(st.text(max_size=60), st.one_of(st.text(max_size=8), st.integers(), st.floats(allow_nan=False), st.booleans()))
def test_any_message_and_any_answer_can_be_read(text, gold):
    assert holds_answer(text, gold) in (True, False)
    assert not holds_answer("", gold)
