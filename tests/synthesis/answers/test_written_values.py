"""A written value is read where it can be read in one way, and is the same answer as another that says the same."""

from __future__ import annotations

from datetime import date
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from synthesis.answers.same_answer import same_answer
from synthesis.answers.written_values import value_of

SAME = [
    ("8,000,000", 8000000),
    ("8 million", 8000000),
    ("8 Million", "8,000,000"),
    ("800万", "8 million"),
    ("8.2 million", 8200000),
    ("1.5亿", "150,000,000"),
    ("-1,200", -1200),
    ("1,212.5", 1212.5),
    ("5 km", "5000 m"),
    ("5km", "5,000 metres"),
    ("5公里", "5 kilometers"),
    ("90 minutes", "1.5 hours"),
    ("2 weeks", "14 days"),
    ("1 year", "12 个月"),
    ("2.5 kg", "2500克"),
    ("12 %", "12%"),
    ("12 percent", "12%"),
    ("20 °C", "20℃"),
    ("$1,500", "1500 dollars"),
    ("€1.5 million", "1,500,000 EUR"),
    ("8 million people", "8,000,000 People"),
    ("3 March 2021", "2021-03-03"),
    ("March 3rd, 2021", "2021-03-03"),
    ("3rd of Mar 2021", "2021/3/3"),
    ("2021年3月3日", "3 March 2021"),
    ("Sept. 9, 2020", "2020-09-09"),
]
DIFFERENT = [
    ("8,000,000", 8000001),
    ("8 million", "8 billion"),
    ("8 million", 8),
    ("5 km", 5),
    ("5 km", 5000),
    ("5 km", "5 m"),
    ("5 km", "5 kg"),
    ("5 km", "5 miles"),
    ("5 m", "5 million"),
    ("5 min", "5 months"),
    ("5000 length", "5 km"),
    ("5 pounds", "£5"),
    ("12%", 12),
    ("12%", 0.12),
    ("20 °C", "20 °F"),
    ("$5", "€5"),
    ("$5", "5 USD"),
    ("¥5", "5 yen"),
    ("8 million people", "8 million"),
    ("8 million people", "8 million households"),
    ("3 March 2021", "2021-03-04"),
    ("03/04/2021", "2021-03-04"),
    ("03/04/2021", "2021-04-03"),
    ("2021-02-30", "30 February 2021"),
    ("2021.3.3", "2021-03-03"),
    ("5", 5),
    ("8000000", 8000000),
    ("8000000", "8,000,000"),
    ("12.5", 12.5),
    ("007", 7),
    ("007", "7"),
    ("1.10", "1.1"),
    ("1.10", 1.1),
    ("1e3", 1000),
    ("12B", 12),
    ("12B", "12 billion"),
    ("5th", 5),
    ("Room 12", 12),
    ("12-14", 12),
    ("1,5", 1.5),
    ("1,5", 15),
    ("12,34", 1234),
    ("10,000,00", 1000000),
    ("error code 1500", 1500),
    ("", 0),
    ("zero", 0),
    ("true", True),
    ("1", True),
    ("New York City", "NYC"),
    ("New York City", "New York"),
]


@pytest.mark.parametrize(("one", "other"), SAME)
def test_what_says_the_same_is_the_same_answer(one, other):
    assert same_answer(one, other)
    assert same_answer(other, one)
    assert same_answer([{"a": one}], [{"a": other}])


@pytest.mark.parametrize(("one", "other"), DIFFERENT)
def test_what_may_say_something_else_is_another_answer(one, other):
    assert not same_answer(one, other)
    assert not same_answer(other, one)


def test_an_alias_is_the_answer_where_it_was_stated_and_only_whole():
    assert same_answer("New York City", "nyc", ["NYC", "The Big Apple"])
    assert not same_answer("New York City", "NYC Marathon", ["NYC"])
    assert not same_answer("New York City", "N", ["NYC"])
    assert not same_answer("New York City", "New York City, NYC", ["NYC"])


@given(st.integers(-(10**12), 10**12), st.integers(-(10**12), 10**12))
def test_numbers_written_in_any_way_are_equal_exactly_where_they_are(one, other):
    counted = [lambda n: n, lambda n: f"{Decimal(n) / 1000:f} thousand", lambda n: f"{Decimal(n) / 10000:f}万"]
    measured = [lambda n: f"{n:,} m", lambda n: f"{n} metres", lambda n: f"{Decimal(n) / 1000:f} km"]
    for ways in (counted, measured):
        for a in ways:
            for b in ways:
                assert same_answer(a(one), b(one))
                assert same_answer(a(one), b(other)) is (one == other)
    assert same_answer(one, f"{one:,}") is (abs(one) >= 1000)
    assert not any(same_answer(a(one), b(one)) for a in counted for b in measured)


@given(st.dates(date(1000, 1, 1)), st.dates(date(1000, 1, 1)))
def test_dates_written_in_any_way_are_equal_exactly_where_they_are(one, other):
    ways = [
        lambda d: d.isoformat(),
        lambda d: f"{d.year}/{d.month}/{d.day}",
        lambda d: f"{d.year}年{d.month}月{d.day}日",
        lambda d: f"{d.day} {d:%B} {d.year}",
        lambda d: f"{d:%b} {d.day}, {d.year}",
    ]
    for a in ways:
        for b in ways:
            assert same_answer(a(one), b(one))
            assert same_answer(a(one), b(other)) is (one == other)


@given(st.text(max_size=40), st.text(max_size=40))
def test_texts_without_a_digit_are_equal_by_their_words_alone(one, other):
    def words(text):
        return not any(character.isdigit() for character in text)

    if words(one) and words(other):
        assert value_of(one) is None
        assert same_answer(one, other) is (" ".join(one.split()).casefold() == " ".join(other.split()).casefold()) or (
            not one.isascii() or not other.isascii()
        )


@given(st.text(max_size=40), st.text(max_size=40))
def test_the_rule_is_symmetric_and_every_text_is_itself(one, other):
    assert same_answer(one, one)
    assert same_answer(one, other) is same_answer(other, one)


@given(st.text("0123456789,.-$€¥%年月日/ kmgMBthousandillion百万千亿", max_size=24), st.integers(0, 9))
def test_what_is_read_of_a_text_holds_all_of_its_digits(text, digit):
    """Another digit anywhere is another answer: none is skipped on the way."""
    said = value_of(text)
    places = [place for place, character in enumerate(text) if character.isdigit() and character != str(digit)]
    for place in places:
        changed = text[:place] + str(digit) + text[place + 1 :]
        if said is not None:
            assert not same_answer(text, changed) or float(digit) == float(text[place])
