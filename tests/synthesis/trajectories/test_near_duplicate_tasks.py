"""Tasks in nearly the same words are kept once; other facts make another task."""

from random import Random

import pytest

from synthesis.trajectories.selection import duplicates, shingles
from tests.synthesis.trajectories.test_pipeline import synthesize

BOOKING = "Please find a hotel in Oslo for the second of May and book the cheapest room for Ana Lind"
CHINESE = "请帮我查询奥斯陆五月二日的酒店，并为林安娜预订最便宜的房间，谢谢你"


def repeated(*texts: str, least: float = 0.8) -> list[int]:
    return list(duplicates(enumerate(texts), least))


@pytest.mark.parametrize("text", [BOOKING, CHINESE])
def test_a_task_with_a_word_put_before_it_is_a_near_duplicate_and_the_first_one_stays(text):
    assert repeated(text, f"Well, {text}!") == [1]
    assert repeated(f"Well, {text}!", text) == [1]


def test_a_task_with_another_fact_is_another_task():
    assert repeated(BOOKING, BOOKING.replace("Oslo", "Lima").replace("Ana", "Raj")) == []
    assert repeated(CHINESE, CHINESE.replace("奥斯陆", "利马").replace("林安娜", "王伟")) == []


@pytest.mark.parametrize("least", [0.5, 0.7, 0.8])
def test_the_duplicates_are_those_of_a_comparison_of_all_with_all_kept_ones(least):
    rng = Random(0)
    texts: list[str] = []
    for _ in range(60):
        base = [f"word{rng.randrange(300)}" for _ in range(rng.randint(1, 30))]
        for _ in range(4):
            texts.append(" ".join(base))
            base[rng.randrange(len(base))] = f"word{rng.randrange(300)}"
    kept: list[frozenset[str]] = []
    expected = []
    for number, found in enumerate(map(shingles, texts)):
        if any(len(found & earlier) / len(found | earlier) >= least for earlier in kept):
            expected.append(number)
        else:
            kept.append(found)
    assert 10 < len(expected) < 230
    assert repeated(*texts, least=least) == expected


async def test_near_duplicates_are_counted_with_their_reason_and_replaced(tmp_path):
    strict = await synthesize(tmp_path / "strict", count=120, near_duplicate_similarity=0.5)
    assert strict.rejected["near-duplicate task"] > 0
    assert strict.kept == 120
