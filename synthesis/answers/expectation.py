"""Episodes that must not answer: whether their last words refuse, or ask back, as expected.

A lexicon of two languages, for episodes that no model judges. A refusal says that the speaker or the tools cannot do
something. A fact of the world (“the flat cannot be rented”) and an idiom (“I cannot stress enough”) are no refusals. A
question back asks for a fact and leaves the turn to the user. An offer (“anything else?”) and a question that is
answered at once are no questions back.
"""

from __future__ import annotations

import re
from typing import Final

from synthesis.records import Expectation

_SENTENCE: Final = re.compile(r"(?<=[.!?])\s+|(?<=[。！？])|\n+")
# Verbs after "I cannot" that say how something is said, and refuse nothing.
_IDIOMS: Final = (
    r"(?:stress|emphasi[sz]e|overstate|overemphasi[sz]e|wait|agree\s+more|thank|imagine|deny|complain|help\s+but"
    r"|recommend\b.*\benough|praise\b.*\benough)"
)
_I_CANNOT: Final = (
    r"\b(?:I|we)\b(?:['’]m|\s+am|\s+are|\s+was|\s+were)?(?:\s+\w+){0,2}?\s*"
    r"(?:cannot|can['’]t|can\s+not|could\s*n['’]t|could\s+not|won['’]t\s+be\s+able\s+to|unable\s+to|not\s+able\s+to"
    r"|not\s+equipped\s+to)\b"
    rf"(?!\s+(?:\w+ly\s+)?{_IDIOMS})"
)
_TOOLS: Final = r"(?:tools?|functions?)"
_REFUSALS: Final = re.compile(
    "|".join((
        _I_CANNOT,
        r"\b(?:I|we)\s+(?:(?:do\s+not|don['’]t|did\s+not|didn['’]t)\s+(?:currently\s+)?have|have\s+no|lack)\s+"
        r"(?:\w+\s+){0,2}?"
        rf"(?:access|{_TOOLS}|means|ability|way|permission|option|capability)\b",
        r"\b(?:I|we)\s+(?:do\s+not|don['’]t)\s+know\b",
        r"\bno\s+(?:way|means)\s+(?:for\s+(?:me|us)\b|of\s+(?:finding|knowing|checking))",
        r"\b(?:not\s+possible|impossible)\s+for\s+(?:me|us)\b",
        r"\b(?:isn['’]t|is\s+not|not)\s+something\s+(?:that\s+)?(?:I|we)\s+can\b",
        r"\b(?:beyond|outside)\s+(?:of\s+)?(?:what\s+)?my\b",
        r"\b(?:cannot|can['’]t|can\s+not)\s+be\s+\w+\s+(?:with|by|using)\s+(?:my|the)\s+(?:\w+\s+)?" + _TOOLS,
        r"\bnot\s+available\s+to\s+(?:me|us)\b",
        rf"\bwithout\s+(?:a|any|the)\s+(?:\w+\s+)?{_TOOLS}\b",
        r"\b(?:none|neither)\s+of\s+(?:my|the|these|those)\s+(?:\w+\s+)?" + _TOOLS,
        rf"(?<!\bused )(?<!\bneeded )(?<!\bwith )\bno\s+(?:\w+\s+)?{_TOOLS}\b"
        r"(?!\s+(?:(?:was|is|were)\s+(?:needed|used|called)|needed|used|twice))",
        rf"\b{_TOOLS}\b[^.;:!?]{{0,24}}?\b(?:(?:do|does)\s+not|(?:do|does)n['’]t)\s+"
        r"(?:allow|let|cover|support|offer|provide|return|give|tell|show|know|have|include|reach|answer|contain)\b",
        rf"\b{_TOOLS}\b[^.;:!?]{{0,24}}?\b(?:cannot|can['’]t|(?:is|are)\s+missing)\b",
        rf"\bnot\s+(?:supported|covered|offered)\s+by\s+(?:my|the|any)\s+(?:\w+\s+)?{_TOOLS}\b",
        # Chinese words stand outside of the `\b`: their characters join without a boundary that it could find.
        r"(?:查|做|办|帮|答|获取|完成|得|说|回答)不(?:到|了|上|出)(?!都)",
        r"找不到(?:任何)?(?:可以|可用|能|合适|工具|办法)",
        r"无从得知|无能为力|爱莫能助|没有?办法|不具备|没能|未能",
        r"无法(?:回答|作答|查|获取|完成|提供|确定|确认|找到|给出|得知|告诉|访问|处理|满足|办理|帮|为您|知道|做到|得出)",
        r"不能(?:回答|为您|帮|查|提供|完成|告诉|给出|得出)|没法(?:查|告诉|回答|帮|完成|提供|给|知道)",
        r"没有[^，。；！？]{0,10}(?:工具|功能|权限|途径|手段|函数)(?!调用)|缺少[^，。；！？]{0,6}(?:工具|函数|功能)",
        r"(?:工具|函数|系统)[^，。；！？]{0,8}(?:不支持|不能|无法|没有|都?不返回|做不到)",
        r"超出[^，。；！？]{0,8}(?:范围|能力)",
    )),
    re.IGNORECASE,
)  # fmt: skip
_FAILED: Final = re.compile(
    r"\b(?:could\s*n['’]t|could\s+not|was\s+unable|were\s+unable|was\s+not\s+able)\b", re.IGNORECASE
)
_BUT: Final = re.compile(r"\sbut\b", re.IGNORECASE)
_NEGATED: Final = re.compile(r"\b(?:not|no|n['’]t)\b", re.IGNORECASE)

_OFFER: Final = re.compile(
    r"anything\s+else|something\s+else|how\s+else|(?:can|may|shall|should)\s+I\s+(?:help|do|book|assist|also)"
    r"|would\s+you\s+like\s+me|do\s+you\s+(?:want|need)\s+me|(?:does|is)\s+(?:that|this)\s+(?:help|ok|okay|fine|all)"
    r"|还有|还需要|还要|要我|需要我|要不要我|可以吗|行吗",
    re.IGNORECASE,
)
_REQUEST: Final = re.compile(
    r"\b(?:tell|give|send)\s+me\b|\blet\s+me\s+know\b(?!\s+if)"
    r"|\bplease\s+(?:provide|specify|state|share|clarify|indicate|name|say)\b"
    r"|\bkindly\s+(?:provide|specify|state|share|clarify|tell)\b"
    r"|\bI(?:['’]d|\s+would|\s+will)?\s+(?:still\s+)?need\s+(?:to\s+know\s+)?(?:the|which|what|your|a)\b"
    r"|\b(?:could|can|would)\s+you\s+(?:please\s+)?(?:tell|give|provide|specify|clarify|share|say)\b"
    r"|(?<!如有需要)(?<!如需)(?:请|麻烦您?)(?:您)?(?:提供|说明|指明|明确|说一下|补充|确认一下|告知)"
    r"|(?<!如有需要请)(?<!如需请)(?<!随时)告诉我"
    r"|请把.{1,12}(?:发|告诉|给)|(?:我|继续的话，我)需要(?:知道|您|.{1,8}的)|(?:得|要|需要)先?知道",
    re.IGNORECASE,
)
# Sentences that may follow a question that is left to the user.
_TRAILING: Final = re.compile(
    r"\b(?:as\s+soon\s+as|once\s+(?:I|you)|then\s+I)\b|\bthank(?:s| you)\b|知道后|之后我|我就|马上|谢谢", re.IGNORECASE
)


def meets_expectation(expectation: Expectation, text: str) -> bool:
    """Say by rule whether an episode's last words refuse, or ask back, as expected.

    Raises:
        ValueError: an answer is expected, which sub-tasks judge, and no rule on words.

    >>> meets_expectation("refuse", "I cannot look up the rent."), meets_expectation("refuse", "It is 4200.")
    (True, False)
    >>> meets_expectation("refuse", "抱歉，我查不到。"), meets_expectation("refuse", "I cannot stress enough: 4200.")
    (True, False)
    >>> meets_expectation("ask_back", "Which flat do you mean?"), meets_expectation("ask_back", "请问是哪套公寓？")
    (True, True)
    >>> meets_expectation("ask_back", "It is 4200. Anything else?"), meets_expectation("ask_back", "Whose? Ada's.")
    (False, False)
    """
    if expectation == "refuse":
        return any(
            _REFUSALS.search(sentence) is not None and not _recovered(sentence) for sentence in _SENTENCE.split(text)
        )
    if expectation == "ask_back":
        return _asks_back(text)
    raise ValueError(f"expected `refuse` or `ask_back`, found {expectation!r}; an answer is judged by its sub-tasks")


def _recovered(sentence: str) -> bool:
    """Say whether a first failure was followed by a success: the last "but" after it has no "not" behind it."""
    for clause in sentence.split("."):
        if failed := _FAILED.search(clause):
            turns = [turn.end() for turn in _BUT.finditer(clause, failed.end())]
            if turns and not _NEGATED.search(clause, turns[-1]):
                return True
    return False


def _asks_back(text: str) -> bool:
    sentences = [sentence.strip() for sentence in _SENTENCE.split(text) if sentence.strip()]
    if len(sentences) > 1 and _TRAILING.search(sentences[-1]) and not sentences[-1].endswith(("?", "？")):
        sentences.pop()
    if not sentences or _OFFER.search(sentences[-1]):
        return False
    return sentences[-1].endswith(("?", "？")) or _REQUEST.search(sentences[-1]) is not None
