"""A written value with one possible reading is read, and is the same answer as another text of that value."""

from __future__ import annotations

import unicodedata
from datetime import date
from decimal import Decimal
from itertools import permutations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from synthesis.answers.final_answer import holds_answer
from synthesis.answers.same_answer import same_answer
from synthesis.answers.written_values import SCALES, UNITS, Quantity, value_of
from synthesis.records import JsonValue

SAME: list[tuple[JsonValue, ...]] = [
    ("8,000,000", 8000000, "8 million", "8 Million", "800万"), ("8.2 million", 8200000), ("1.5亿", "150,000,000"),
    ("-1,200", -1200), ("1,212.5", 1212.5), ("5 km", "5000 m"), ("5km", "5,000 metres"), ("5公里", "5 kilometers"),
    ("90 minutes", "1.5 hours"), ("2 weeks", "14 days"), ("1 year", "12 个月"), ("2.5 kg", "2500克"),
    ("12 %", "12%", "12 percent"), ("20 °C", "20℃"), ("$1,500", "1500 dollars"), ("€1.5 million", "1,500,000 EUR"),
    ("8 million people", "8,000,000 People"), ("3rd of Mar 2021", "2021/3/3"),
    ("3 March 2021", "2021-03-03", "March 3rd, 2021", "2021年3月3日"), ("Sept. 9, 2020", "2020-09-09"),
    # areas and volumes, whose names hold digits
    ("5 m2", "5 m²"), ("5m²", "5平方米"), ("5 ㎡", "5 square metres"), ("5 km2", "5,000,000 m²"),
    ("2 km²", "200 hectares"), ("3 m³", "3000 litres"), ("30 m^2", "30 sqm"), ("3万平方米", "3 hectares"),
    # scales
    ("5百万", 5000000), ("5 hundred", 500), ("2.3 hundred", 230), ("5千", "5 thousand"), ("5 millions", "500万"),
    ("1.2千亿", "120 billion"), ("2 trillion", "2万亿"), ("3十亿", "3 billion"),
    # a name of a unit goes before a scale
    ("5千瓦时", "5 kWh"), ("5千米", "5公里"), ("5千克", "5 kg"), ("5万千瓦时", "50 MWh"), ("5千瓦", "5,000 W"),
    ("5百分点", "5 percentage points"),
    # units
    ("36 km/h", "10 m/s"), ("60 mph", "60 miles per hour"), ("5 Hours", "300 MINUTES"), ("1克拉", "200 mg"),
    ("1 mile", "1760 yards"), ("1 yard", "3 feet", "36 inches"), ("1 inch", "2.54 cm"), ("1斤", "500 g"),
    ("5 per cent", "5%"), ("20 degrees Celsius", "20 °C"), ("68 °f", "68 ℉"), ("-4 °C", "−4℃"), ("5美元", "US$5"),
    ("HK$5", "5港元"), ("-$5", "$-5"), ("$5", "5 dollars"), ("usd 1.5 million", "150万美元"), ("１２．５％", "12.5 %"),
    ("5 KM", "5 km"),
    # counted words
    ("1,500 households", "1500 Households"), ("1500 households", "1.5 thousand households"), ("3.10 LTS", "3.10 lts"),
    ("1,234,567,890,123,456,789,012,345,678,901", 1234567890123456789012345678901), ("0.1 km", "100 m"),
    ("2.50 kg", "2.5 kg"), ("1 May 2021", "May 1, 2021"), ("Sept 9 2020", "9 September 2020"),
]  # fmt: skip
"""Values of one line are the same answer."""
DIFFERENT: list[tuple[JsonValue, tuple[JsonValue, ...]]] = [
    ("8,000,000", (8000001,)), ("8 million", ("8 billion", 8)), ("5 km", (5, 5000, "5 m", "5 kg", "5 miles")),
    ("5 m", ("5 million",)), ("5 min", ("5 months",)), ("5000 length", ("5 km",)), ("5 pounds", ("£5",)),
    ("12%", (12, 0.12)), ("20 °C", ("20 °F",)), ("$5", ("€5", "5 USD")), ("¥5", ("5 yen",)),
    ("8 million people", ("8 million", "8 million households")), ("3 March 2021", ("2021-03-04",)),
    ("03/04/2021", ("2021-03-04", "2021-04-03")), ("2021-02-30", ("30 February 2021",)),
    ("2021.3.3", ("2021-03-03",)), ("5", (5,)), ("8000000", (8000000, "8,000,000")), ("12.5", (12.5,)),
    ("007", (7, "7")), ("1.10", ("1.1", 1.1)), ("1e3", (1000,)), ("12B", (12, "12 billion")), ("5th", (5,)),
    ("Room 12", (12,)), ("12-14", (12,)), ("1,5", (1.5, 15)), ("12,34", (1234,)), ("10,000,00", (1000000,)),
    ("error code 1500", (1500,)), ("", (0,)), ("zero", (0,)), ("true", (True,)), ("1", (True,)),
    ("New York City", ("NYC", "New York")),
    # percent is of something, a percentage point is itself
    ("5%", ("5个百分点", "5 % points", "5‰")), ("5 percent", ("5 percentage points",)),
    # a version is no number, nor are digits before a word that is no unit
    ("3.10 LTS", ("3.1 LTS",)), ("3.0 beta", ("3 beta",)), ("Python 3.10", ("Python 3.1",)),
    ("1.50 stable", ("1.5 stable",)), ("v1.10", ("v1.1",)), ("10.0 inches tall", ("10 inches tall",)),
    # exact, however long
    ("1,234,567,890,123,456,789,012,345,678,901", ("1,234,567,890,123,456,789,012,345,678,902",)),
    ("1234567890123456789012345678901 m", ("1234567890123456789012345678902 m",)),
    ("12345678901234567890.25 km", ("12345678901234567890.26 km",)), ("$1,000,000.25", ("$1,000,000.75",)),
    ("1.0000001 km", ("1 km",)),
    # the case of a short unit
    ("5 mg", ("5 Mg",)), ("5mg", ("5Mg",)), ("5 mW", ("5 MW",)), ("5 mWh", ("5 MWh",)), ("5 g", ("5 G",)),
    ("5 m", ("5 M",)),
    # square, cubic, per
    ("5 m2", ("5 m", 52)), ("5 m²", ("5 m³",)), ("5 km2", ("5 km", "5000 m2")), ("5 km/h", ("5 km", "5 m/s")),
    ("5 W", ("5 Wh",)), ("5 kW", ("5 kWh",)), ("$5 per day", ("$5",)), ("5 USD/month", ("5 USD",)),
    # scales
    ("5百", (5,)), ("5百万", (500,)), ("5 hundredths", (500,)), ("8 millionaires", (8000000,)),
    ("8 millionth", (8000000,)), ("5 hundred thousand", (500,)), ("3万5千", (30000,)), ("5千米", (5000,)),
    ("5 thousand", ("5 thousand m",)), ("$5m", ("$5",)), ("5bn", (5,)),
    # currencies
    ("HK$5", ("$5",)), ("A$5", ("$5",)), ("NT$5", ("$5",)), ("$5 CAD", ("$5",)), ("US$5", ("HK$5",)),
    ("5元", ("5美元",)), ("5日元", ("5元",)), ("-$5", ("$5",)), ("-$-5", ("$5",)),
    # powers and fractions
    ("10²", ("102",)), ("10² km", ("102 km",)), ("5½ km", ("51 km",)), ("5½", ("51⁄2",)), ("1/2 km", ("12 km",)),
    # lookalikes
    ("5 feet 3 inches", ("5 feet",)), ("1 hour 30 minutes", ("1 hour",)), ("5-10 km", ("10 km",)),
    ("+5 km", ("-5 km",)), ("1 month", ("30 days",)), ("1 min", ("1 m",)), ("5 t", ("5 trillion",)),
    ("5 carats", ("5 g",)), ("5周岁", ("5周",)), ("2021年", ("2021 years",)), ("31 April 2021", ("1 May 2021",)),
    ("Mar 2021", ("2021-03-01",)), ("3/3/2021", ("2021-03-03",)), ("20210303", ("2021-03-03",)), ("0 °C", ("32 °F",)),
    ("1e3 m", ("1000 m",)), ("0x10", (16,)), ("五公里", ("6公里",)),
]  # fmt: skip
"""A value, and others that are another answer."""


def test_texts_of_one_value_are_the_same_answer():
    for one, other in (pair for values in SAME for pair in permutations(values, 2)):
        assert same_answer(one, other), (one, other)
        assert same_answer([{"a": one}], [{"a": other}]), (one, other)


def test_a_text_that_may_have_another_value_is_another_answer():
    for one, other in ((one, other) for one, others in DIFFERENT for other in others):
        assert not same_answer(one, other), (one, other)
        assert not same_answer(other, one), (one, other)


def test_a_whole_number_that_no_float_reaches_is_compared_all_the_same():
    assert same_answer(10**400, 10**400)
    assert not same_answer(10**400, 10**400 + 1)
    assert not same_answer(10**400, 1.5)
    assert not same_answer(float("inf"), 10**400)
    assert not same_answer(10**400, "8,000.5")


def test_an_alias_is_the_answer_where_it_was_stated_and_only_whole():
    assert same_answer("New York City", "nyc", ["NYC", "The Big Apple"])
    assert not same_answer("New York City", "NYC Marathon", ["NYC"])
    assert not same_answer("New York City", "N", ["NYC"])
    assert not same_answer("New York City", "New York City, NYC", ["NYC"])


def names_of_units() -> list[tuple[str, str, str]]:
    """Kind, factor and name of every unit of the table."""
    return [(kind, factor, name.replace("_", " ")) for kind, factor, names in UNITS for name in names.split()]


@settings(max_examples=40)  # with each of some two hundred names
@given(
    number=st.decimals(0, 10**9, places=2),
    with_separators=st.booleans(),
    space=st.sampled_from(["", " ", "  ", "\u00a0"]),
    sentence=st.sampled_from(
        ["{}", "It is {}.", "**{}**", "Is it ({}), or what?", "答案是{}。", "共{}左右，谢谢", "约 {} 吧"]
    ),
    scale=st.sampled_from([("", 1), (" Million ", 10**6), ("万", 10**4), ("百万", 10**6)]),
)
def test_every_unit_of_the_table_is_read_alone_and_in_a_sentence(number, with_separators, space, sentence, scale):
    for kind, factor, name in names_of_units():
        written = (f"{number:,f}" if with_separators else f"{number:f}") + scale[0] + space + name
        base = number * scale[1] * Decimal(factor)
        assert value_of(written) == Quantity(base, kind.upper()), written
        assert value_of(f"-{written}") == Quantity(-base, kind.upper()), written
        assert holds_answer(sentence.format(written), written), written
        assert not holds_answer(sentence.format(written), f"{number + 1:f}{scale[0]}{space}{name}"), written


def test_no_name_of_a_unit_stands_for_two():
    names = [unicodedata.normalize("NFKC", name) for _, _, name in names_of_units()]
    written = {(kind, factor, unicodedata.normalize("NFKC", name)) for kind, factor, name in names_of_units()}
    assert len(written) == len(set(names))


@pytest.mark.parametrize("scale", SCALES)
@given(number=st.integers(1, 10**6), space=st.sampled_from(["", " "]))
def test_every_scale_is_read_alone_and_in_a_sentence(scale, number, space):
    written, value = f"{number}{space}{scale}", number * SCALES[scale]
    assert value_of(written) == Quantity(value)
    assert holds_answer(f"It is {written}.", value)
    assert holds_answer(f"答案是{written}。", value)
    assert not holds_answer(f"It is {written}.", number)


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
def test_the_value_of_a_text_holds_all_of_its_digits(text, digit):
    """Another digit anywhere is another answer: none is skipped on the way."""
    said = value_of(text)
    places = [place for place, character in enumerate(text) if character.isdigit() and character != str(digit)]
    for place in places:
        changed = text[:place] + str(digit) + text[place + 1 :]
        if said is not None:
            assert not same_answer(text, changed) or float(digit) == float(text[place])


@pytest.mark.parametrize(
    ("gold", "value", "same"),
    [
        ("Oak", "oak ", True), ("ＳＢ３７１８", "sb3718", True), ("Oak", "Oak Hill", False),
        ("Oak Hill", "Oak", False), ("5", 5, False), (1_000_000, 1_000_001, False), (1_000_000, 1_000_000.5, True),
        (0.3, 0.1 + 0.2, True), (0.3, 0.301, False), (0, 1e-6, False), (1, True, False), (False, False, True),
        ([1, 2], [2, 1], False), ([1, 2], (1, 2), True), ([1, 2], [1, 2, 3], False),
        ({"a": 1, "b": [True]}, {"b": [True], "a": 1}, True), ({"a": 1}, {"a": 1, "b": 2}, False), (None, None, True),
        (None, "None", False), ("", None, False),
    ],
)  # fmt: skip
def test_values_are_the_same_answer_by_type_and_value(gold, value, same):
    assert same_answer(gold, value) is same
    assert same_answer(value, gold) is same
