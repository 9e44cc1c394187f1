"""A text is in its language, or its foreign passages are named; given texts, names and code belong to no language."""

from __future__ import annotations

import time

import pytest
from hypothesis import given as over
from hypothesis import strategies as st

from synthesis.run.json_values import texts_in
from synthesis.written_language import foreign_passages, is_in_another_language

ENGLISH = [
    ("Find a hotel in Oslo for two nights.", ()),
    ("What's the weather at Zoë's café in Ångström?", ()),
    ("Book a table for 李伟 at 7 pm.", ("李伟",)),
    ("Cancel order 北京-17 and tell 王芳.", ("北京-17", {"guest": "王芳"})),
    ("Who wrote 《红楼梦》?", ()),
    ("Run `查询` and send the output.", ()),
    ("Open https://example.org/wiki/北京 please.", ()),
    ("A 5 µm filter, 3 Ω at 20 °C.", ()),
    ("Flights to Hawaiʻi and Oʻahu", ()),
    ("The guest is 李伟.", ('{"guest": "李伟", "note": "常客"}',)),
]
NOT_ENGLISH = [
    ("请帮我查询奥斯陆的天气。", (), "请帮我查询奥斯陆的天气"),
    ("Please 查询 the weather in Oslo.", (), "查询"),
    ("Book a table for 李伟先生.", ("李伟",), "李伟先生"),
    ("Done. 已完成。", (), "已完成"),
    ("The 余额 of my account", (), "余额"),
    ("ホテルを予約して", (), "ホテルを"),
    ("Найди отель в Осло", (), "Найди"),
    ("호텔 예약해 줘", (), "호텔"),
    ("Ｆｉｎｄ　ｉｔ，谢谢", (), "谢谢"),
]
CHINESE = [
    ("请帮我查询奥斯陆明天的天气。", ()),
    ("把 Oslo 的报表存成 PDF，发给 Ana。", ()),
    ("查一下 Bank of America 和 The Beatles 的资料", ()),
    ("用 Python 写一个 fetch_data 函数", ()),
    ("请分析 iPhone 15 Pro Max 的销量", ()),
    ("给 Ana 发邮件，主题是 Weekly report for Q3", ("Weekly report for Q3",)),
    ("打开 https://example.org/the/report 并保存到 README.md", ()),
    ("把 orderId 为 A-17 的订单取消，车速 100 km/h", ()),
    ("A 座三楼", ()),
    ("佐々木先生在吗？", ()),
    ("查一下飞往 Hawaiʻi 的航班", ()),
    ("标题是 Weekly  report for Q3。", ("Weekly \t report for Q3",)),
    ("Oslo", ("Oslo",)),
    ("运行 `git push --all the things`", ()),
    ("17", ()),
]
NOT_CHINESE = [
    ("Find a hotel in Oslo.", (), "Find a hotel in Oslo"),
    ("Oslo", (), "Oslo"),
    ("Result: 李伟.", ("李伟",), "Result"),
    ("请 Please 帮我订票", (), "Please"),
    ("帮我 check 一下订单", (), "check"),
    ("帮我 find a hotel in Oslo，谢谢", (), "find a hotel in"),
    ("查询 weekly sales report 的结果", (), "weekly sales report"),
    ("给 Ana 发邮件：Weekly report for Q3 is done", ("Weekly report for Q3",), "is done"),
    ("помоги мне 订票", (), "помоги"),
    ("订单の状态", (), "の"),
]


def both(english: list, chinese: list) -> list:
    return [("en", *row) for row in english] + [("zh", *row) for row in chinese]


@pytest.mark.parametrize(("language", "text", "given"), both(ENGLISH, CHINESE))
def test_a_text_with_names_code_and_given_values_is_in_its_language(language, text, given):
    assert foreign_passages(text, language, given=texts_in(given)) == []


@pytest.mark.parametrize(("language", "text", "given", "passage"), both(NOT_ENGLISH, NOT_CHINESE))
def test_words_of_another_language_are_found(language, text, given, passage):
    assert any(passage in found for found in foreign_passages(text, language, given=texts_in(given)))


def test_a_word_of_the_documents_may_stand_in_chinese_but_no_phrase_of_them():
    documents = ["Create an issue in a repository, with its labels"]
    assert foreign_passages("在仓库里建一个 issue", "zh", terms=documents) == []
    assert foreign_passages("在仓库里建一个 issue", "zh") == ["issue"]
    assert foreign_passages("请 create an issue in a repository", "zh", terms=documents) != []


@pytest.mark.parametrize(
    "text", ["请查 a" + " " * 100_000 + "。", "查" + " \t" * 50_000 + "a , b", "\u3000" * 100_000 + "a"]
)
def test_a_text_of_white_space_is_read_in_the_time_that_its_length_takes(text):
    begun = time.process_time()
    foreign_passages(text, "zh", given=[text[::-1]])
    assert time.process_time() - begun < 1  # seconds; a minute where each space is tried with each that follows


han = st.text(st.characters(min_codepoint=0x4E00, max_codepoint=0x9FFF), min_size=1, max_size=8)
english = st.lists(st.sampled_from(["please", "find", "the", "cheapest", "flat", "near", "my", "office"]), min_size=1)


@over(english, han, english)
def test_any_chinese_among_english_words_is_found_unless_it_was_given(before, passage, after):
    text = " ".join([*before, passage, *after])
    assert foreign_passages(text, "en") == [passage]
    assert foreign_passages(text, "en", given=[f"guest {passage}"]) == []


@over(han, st.lists(st.sampled_from(["the", "with", "for", "please", "my"]), min_size=1, max_size=6), han)
def test_english_words_among_chinese_are_found_wherever_they_stand(before, words, after):
    phrase = " ".join(words)
    assert foreign_passages(f"{before}{phrase}{after}", "zh") == [phrase]
    assert foreign_passages(f"{before} {phrase}，{after}", "zh", given=[phrase]) == []


@over(st.text(max_size=60), st.sampled_from(["en", "zh"]))
def test_no_text_is_too_strange_and_a_given_text_is_never_foreign(text, language):
    assert isinstance(foreign_passages(text, language), list)
    assert foreign_passages(text, language, given=[text]) == []


@pytest.mark.parametrize(
    ("text", "is_other"),
    [
        ("Recupera as mensagens enviadas em um grupo dentro de um intervalo de datas.", True),
        ("Obtiene la reputación de un vendedor. Obtiene las reseñas de un producto.", True),
        ("Renvoie tous les transitaires de la ville pour un pays.", True),
        ("Beantwortet die Frage, wie viele Tage vorhanden sind.", True),
        ("Zwraca listę produktów dla użytkownika.", True),
        ("Повертає список замовлень.", True),
        ("ファイルの文字数を計測します。", True),
        ("Get the list of cafés in São Paulo for a user. Delete a menu in Málaga.", False),
        ("Run a command", False),
        ("MSSQL query", False),
        ("查询 SAP 订单。List orders。", False),
        ("Translate from French: 'le monde' to 'the world' and return it.", False),
        ("```python\nfür = 3\n``` runs the code", False),
    ],
)
def test_a_text_in_a_third_language_is_told_from_english_with_foreign_names(text, is_other):
    assert is_in_another_language(text) is is_other
