"""The pages in Chromium: each filter, overlay and key of the viewer, and what axe says of every page.

Needs `pip install -e '.[browser]'` and a Chromium, such as that of `apt-get install chromium`.
"""

from __future__ import annotations

import json
import math
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest

from astra_jax import report
from astra_jax.cli.command import main
from astra_jax.episodes.log import LoggedEpisode, write_episodes
from astra_jax.recipes.data_sets import describe
from astra_jax.report.episodes import viewer_data
from astra_jax.testing import tiny_environment
from synthesis.record_io import write_records
from tests.astra_jax.benchmarks.test_report import all_of, run
from tests.astra_jax.report.many_episodes import many_episodes
from tests.astra_jax.report.test_report import HOSTILE, finished_episode, line_of, trajectory, write_run

pytestmark = pytest.mark.slow
playwright = pytest.importorskip("playwright.sync_api", reason="no playwright: pip install -e '.[browser]'")
axe = pytest.importorskip("axe_playwright_python", reason="no axe: pip install -e '.[browser]'")
AXE = (Path(axe.__file__).parent / "axe.min.js").read_text(encoding="utf-8")
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
COUNT = 500
FILTERS = ("policy", "split", "domain", "language", "stop", "error")
OVERLAYS = ("source", "mask", "logprob", "version", "advantage", "ratio", "difference")
DESKTOP, PHONE = {"width": 1440, "height": 900}, {"width": 390, "height": 844}


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    if CHROMIUM is None:
        pytest.skip("no Chromium: apt-get install chromium")
    with playwright.sync_playwright() as running:
        browser = running.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def logged() -> list[LoggedEpisode]:
    """The episodes in the order of the page."""
    found = [LoggedEpisode.model_validate(line) for line in many_episodes(COUNT)]
    ids = [each["id"] for each in viewer_data([("", episode) for episode in found])["environments"]]
    return sorted(found, key=lambda episode: (ids.index(episode.environment_id), episode.policy == "rl"))


@pytest.fixture(scope="module")
def page_file(tmp_path_factory: pytest.TempPathFactory, logged: list[LoggedEpisode]) -> Path:
    out = tmp_path_factory.mktemp("viewer")
    write_episodes(out / "episodes.jsonl", [episode.model_dump(mode="json") for episode in logged])
    return report.write_report(out, describe)


@pytest.fixture
def opened(browser: Any, page_file: Path) -> Iterator[Callable[[str], Any]]:
    """Open the page at a hash; a message of the console fails the test."""
    said: list[str] = []
    context = browser.new_context(viewport=DESKTOP)

    def opened(hash_: str = "", file: Path = page_file) -> Any:
        page = context.new_page()
        page.on("pageerror", lambda error: said.append(str(error)))
        page.on("console", lambda message: said.append(message.text))
        page.on("dialog", lambda dialog: said.append("a text of a model ran"))
        page.goto(f"{file.as_uri()}{hash_}")
        return page

    yield opened
    context.close()
    assert said == []


def rows(page: Any) -> int:
    return page.locator("#list button").count()


def is_open(page: Any) -> int:
    """The place of the open episode in the list."""
    current = page.locator("#list button").evaluate_all("rows => rows.map(row => row.getAttribute('aria-current'))")
    assert current.count("true") == 1
    return current.index("true")


def test_a_page_of_500_episodes_is_small_and_is_painted_in_a_second(opened, page_file, logged) -> None:
    assert page_file.stat().st_size <= 5_000_000
    paints = []
    for _ in range(3):
        page = opened()
        assert rows(page) == len(logged) == COUNT
        # Waiting by a function would be `eval` to the page, whose policy forbids it.
        while not page.evaluate("performance.getEntriesByType('paint').length"):
            page.wait_for_timeout(10)
        paints.append(page.evaluate("performance.getEntriesByType('paint')[0].startTime"))
    assert min(paints) <= 1000, paints


def values(episode: LoggedEpisode) -> dict[str, set[str]]:
    return {
        "policy": {{"sft": "SFT", "rl": "RL"}.get(episode.policy, episode.policy)},
        "split": {episode.split},
        "domain": {episode.domain},
        "language": {{"en": "English", "zh": "Chinese"}[episode.language]},
        "stop": {episode.stop_reason},
        "error": {call.error for call in episode.calls if call.error} or {"no error"},
    }


@pytest.mark.parametrize("name", FILTERS)
def test_each_filter_leaves_the_episodes_with_its_value(opened, logged, name: str) -> None:
    page = opened()
    choices = set().union(*(values(episode)[name] for episode in logged))
    assert len(choices) > 1
    for choice in sorted(choices):
        page.select_option(f"select[name={name}]", choice)
        assert rows(page) == sum(choice in values(episode)[name] for episode in logged)
        assert is_open(page) >= 0
    page.click("button[type=reset]")
    page.locator("#list button").nth(COUNT - 1).wait_for()


def test_filters_that_have_one_value_are_not_shown(opened) -> None:
    page = opened()
    assert not page.is_visible("select[name=run]")
    assert not page.is_visible("select[name=scenario]")


def test_episodes_are_found_by_reward_and_by_text_and_an_empty_list_says_so(opened, logged) -> None:
    page = opened()
    page.fill("input[name=least]", "0.3")
    page.fill("input[name=most]", "0.7")
    assert rows(page) == sum(0.3 <= episode.reward <= 0.7 for episode in logged)
    assert f"{rows(page)} episodes of 500, mean reward" in page.inner_text("#count")
    page.click("button[type=reset]")
    page.fill("input[name=search]", "OWNER 17 OWNS")
    assert rows(page) == 2
    page.fill("input[name=search]", "that nobody said")
    assert rows(page) == 0
    assert "remove a filter" in page.inner_text("#detail")


@pytest.mark.parametrize(("sort", "sign"), [("lowest", 1), ("highest", -1)])
def test_the_list_is_sorted_by_reward(opened, logged, sort: str, sign: int) -> None:
    page = opened()
    page.select_option("select[name=sort]", sort)
    found = page.locator("#list b").all_inner_texts()
    assert found == [f"{sign * reward:.2f}" for reward in sorted(sign * episode.reward for episode in logged)]


@pytest.mark.parametrize("sort", ["spread", "calls", "tokens"])
def test_every_other_order_keeps_all_episodes_and_changes_them(opened, sort: str) -> None:
    page = opened()
    before = page.locator("#list button").all_inner_texts()
    page.select_option("select[name=sort]", sort)
    after = page.locator("#list button").all_inner_texts()
    assert sorted(after) == sorted(before)
    assert after != before


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_each_overlay_colours_the_sampled_tokens_by_its_own_value(opened, logged, overlay: str) -> None:
    page = opened("#episodes?policy=step+3")
    page.select_option("select[name=overlay]", overlay)
    episode = logged[is_open(page)]  # the group comes first
    assert episode.advantage
    of_model = [token for token in episode.tokens if token.source == "model"]
    apart = {
        token: learner - token.sampled_logprob
        for token, learner in zip(of_model, episode.learner_logprobs, strict=True)
    }
    sampled = [token for token in of_model if token.text]
    strengths = page.locator("#detail .run.model i").evaluate_all(
        "all => all.map(i => i.style.getPropertyValue('--v'))"
    )
    newest = max(token.policy_version for each in logged for token in each.tokens)
    expected = {
        "source": lambda token: 0,
        "mask": lambda token: 1,
        "logprob": lambda token: min(1, -token.sampled_logprob / 4),
        "version": lambda token: (token.policy_version + 1) / (newest + 1),
        "advantage": lambda token: min(1, abs(episode.advantage) / 2),
        "ratio": lambda token: min(1, abs(math.exp(apart[token]) - 1) / 0.2),
        "difference": lambda token: max(0, min(1, 1 + math.log10(abs(apart[token])) / 6)),
    }[overlay]
    assert list(map(float, strengths)) == pytest.approx(list(map(expected, sampled)), abs=1e-3)
    colours = page.locator("#detail .run.model i").evaluate_all(
        "all => all.map(i => getComputedStyle(i).backgroundColor)"
    )
    assert len(set(colours)) == (2 if overlay == "source" else len(set(strengths)))
    assert bool(page.inner_text("#overlay-legend")) == (overlay != "source")


def test_the_tokens_are_exact_and_each_tells_its_own_facts(opened, logged) -> None:
    page = opened()
    episode = logged[is_open(page)]
    response = [token for token in episode.tokens if token.turn]
    shown = page.locator("#detail .episode > .tokens").evaluate("e => e.textContent.replaceAll('↵', '')")
    assert shown == "".join(token.text for token in response)
    page.locator("#detail .run.model i").first.hover()
    told, first = page.inner_text("#told"), response[0]
    assert f"token {len(episode.tokens) - len(response) + 1} · id {first.id} · {json.dumps(first.text)} · model" in told
    (logprob,) = re.findall(r"log p (\S+) ", told)
    assert float(logprob) == pytest.approx(first.sampled_logprob, abs=5e-4 + 1e-9)
    assert told.endswith(f"version {first.policy_version} · loss")
    page.locator("#detail .run.tool i").first.click()
    assert page.inner_text("#told").endswith("tool · turn 1 · no loss")
    page.click("#detail details > summary")
    prompt = page.locator("#detail details .tokens").evaluate("e => e.textContent.replaceAll('↵', '')")
    assert prompt == "".join(token.text for token in episode.tokens if not token.turn)


def test_f1_is_derived_call_by_call_and_the_credits_add_up_to_it(opened, logged) -> None:
    page = opened()
    for place in range(6, 20):
        page.locator("#list button").nth(place).click()
        episode, steps = logged[place], page.locator("#detail .steps tbody tr")
        found = [row.split("\t") for row in steps.all_inner_texts()]
        assert len(found) == len(episode.calls)
        assert sum(float(row[-1].replace("−", "-")) for row in found) == pytest.approx(episode.f1, abs=2e-3)
        for row, call in zip(found, episode.calls, strict=True):
            result = f"solves {call.solved + 1}" if call.solved is not None else (call.error or "").replace("_", " ")
            assert result in row[1]
            assert (float(row[-1].replace("−", "-")) > 0) == (call.solved is not None)
        assert page.locator("#detail .time span").count() == 3 * len(episode.seconds)


def test_other_policies_and_the_group_stand_beside_the_open_episode(opened, logged) -> None:
    page = opened()
    page.locator("#list button").first.click()
    page.select_option("select[name=beside]", "group")
    assert page.locator("#detail .episode").count() == 4
    assert "of 4 in its group" in page.inner_text("#detail")
    page.locator("#list button").nth(6).click()
    assert page.locator("#detail .episode").count() == 1
    own, other = page.locator("#list .policy").nth(6).inner_text(), page.locator("#list .policy").nth(7).inner_text()
    assert {own, other} == {"SFT", "RL"}
    for choice, beside in (("all", [other]), (other, [other]), (own, []), ("", [])):
        page.select_option("select[name=beside]", choice)
        heads = page.locator("#detail h4").all_inner_texts()
        assert [head.split(" reward")[0] for head in heads] == [own, *beside]


def test_policies_are_compared_on_the_environments_that_all_have(opened, logged) -> None:
    page = opened()
    page.select_option("select[name=split]", "heldout")
    own = {policy: {e.environment_id: e.f1 for e in logged if e.policy == policy} for policy in ("sft", "rl")}
    common = {e.environment_id for e in logged if e.split == "heldout"} & own["sft"].keys() & own["rl"].keys()
    assert 0 < len(common) < COUNT / 2
    sft, rl = (fmean(own[policy][each] for each in common) for policy in ("sft", "rl"))
    expected = f"Mean F1 on the {len(common)} environments that all have: SFT {sft:.3f}, RL {rl:.3f}"
    assert page.inner_text("#same") == expected
    page.fill("input[name=least]", "0.1")
    assert page.inner_text("#same") == "", "outcomes that are filtered say nothing of a policy"


def test_keys_go_through_the_list_and_the_choices(opened) -> None:
    page = opened()
    place = is_open(page)
    for key, step in (("j", 1), ("j", 1), ("k", -1)):
        page.keyboard.press(key)
        place += step
        assert is_open(page) == place
    page.keyboard.press("o")
    assert page.input_value("select[name=overlay]") == "mask"
    page.keyboard.press("s")
    assert page.input_value("select[name=beside]") == "all"
    page.keyboard.press("/")
    page.keyboard.type("jok")
    assert page.input_value("input[name=search]") == "jok"
    assert page.input_value("select[name=overlay]") == "mask"


def test_the_address_opens_the_same_episode_with_the_same_choices(opened) -> None:
    page = opened()
    page.select_option("select[name=policy]", "RL")
    page.select_option("select[name=error]", "exception")
    page.select_option("select[name=overlay]", "logprob")
    page.fill("input[name=search]", "owner")
    page.locator("#list button").nth(3).click()
    again = opened(page.url[page.url.index("#") :])
    for choice in ("policy", "error", "overlay", "search"):
        assert again.input_value(f"[name={choice}]") == page.input_value(f"[name={choice}]") != ""
    assert rows(again) == rows(page) < COUNT
    assert is_open(again) == is_open(page) == 3
    assert again.inner_text("#detail") == page.inner_text("#detail")
    odd = opened("#episodes?overlay=none&policy=nobody&open=nothing")
    assert rows(odd) == COUNT


def test_texts_of_models_stay_text_in_the_browser(opened, tmp_path: Path) -> None:
    line = line_of(finished_episode(response=HOSTILE, answer=HOSTILE), HOSTILE)
    line |= {"question": HOSTILE, "domain": HOSTILE, "answer": {HOSTILE: 1}, "stop_reason": HOSTILE, "split": HOSTILE}
    line["calls"][0] |= {"name": HOSTILE, "error": HOSTILE, "response": HOSTILE, "turn": 1}
    line["calls"][1] |= {"turn": 1}
    line["sub_questions"][0] |= {"question": HOSTILE, "answer": HOSTILE, "tool": HOSTILE}
    write_episodes(tmp_path / "episodes.jsonl", [line])
    page = opened(file=report.write_report(tmp_path, describe))
    assert page.locator("#detail img, #detail script, #list img").count() == 0
    assert page.inner_text("#detail").count("<script>alert(1)</script>") >= 5


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory, page_file: Path) -> dict[str, Path]:
    """Every kind of page."""
    folder = tmp_path_factory.mktemp("pages")
    write_run(folder / "run")
    write_run(folder / "other")
    write_records(folder / "set", [tiny_environment()], kind="environment")
    write_records(folder / "trajectories", [trajectory(number) for number in range(3)], kind="trajectory")
    assert main(["report", str(folder / "run"), str(folder / "other")]) == 0
    attack = ["records", "attack", str(folder / "set"), "--out", str(folder / "certificate")]
    subprocess.run([sys.executable, "-m", "astra_jax.cli", *attack], check=True)  # here runs the loop of playwright
    benchmark = run(folder / "bfcl", all_of(1, 0))
    assert main(["evaluate", "report", str(benchmark), "--out", str(folder / "benchmarks")]) == 0
    return {
        "episodes": page_file,
        "run": report.write_report(folder / "run", describe),
        "side by side": folder / "run_other.html",
        "environments": report.write_report(folder / "set", describe),
        "trajectories": report.write_report(folder / "trajectories", describe),
        "benchmarks": folder / "benchmarks" / "report.html",
        "certificate": folder / "certificate" / "certificate.html",
    }


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("viewport", [DESKTOP, PHONE], ids=["desktop", "phone"])
def test_axe_finds_nothing_serious_and_no_page_is_wider_than_the_phone(browser, pages, viewport, scheme) -> None:
    context = browser.new_context(viewport=viewport, color_scheme=scheme, bypass_csp=True)  # for axe's own script
    # The rows of a list are alike, so a short one is enough.
    hashes = [f"#episodes?policy=step+3&overlay={overlay}&beside=group" for overlay in OVERLAYS]
    for name, file in pages.items():
        for hash_ in hashes if name == "episodes" else [""]:
            page = context.new_page()
            page.goto(f"{file.as_uri()}{hash_}")
            page.evaluate("document.querySelectorAll('details').forEach(details => details.open = true)")
            page.add_script_tag(content=AXE)
            found = page.evaluate("async () => (await axe.run()).violations")
            serious = [each for each in found if each["impact"] in ("serious", "critical")]
            assert [(each["id"], each["nodes"][0]["html"]) for each in serious] == [], (name, hash_)
            assert page.evaluate("document.documentElement.scrollWidth") == viewport["width"], name
            tiles = page.locator(".tiles > div").evaluate_all("all => all.map(e => [e.scrollWidth, e.clientWidth])")
            assert all(needed <= given for needed, given in tiles), name
            page.close()
    context.close()
