"""Blind classifiers of tools: is a tool an environment's own, or a distractor? They see no question.

A linear model reads features of a tool's document. It learns from all other domains of a language which tools are own.
In a fair set own tools and distractors are written alike, so it picks own tools as often as chance does. Its accuracy
is counted among tools that share a required parameter: distractors of other domains are told apart by their words.
"""

from __future__ import annotations

import re
import zlib
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from synthesis.records import BlindAccuracy, Environment, Language, ToolDocument, canonical_json

Beliefs = dict[str, float]
"""Name of a tool to the score of a model: above 0 the tool is more likely own than not."""
Features = Callable[[ToolDocument], NDArray[np.float64]]

_HASHED: Final = 1024
_WORD: Final = re.compile(r"[a-z]+")
_FUNCTION_WORDS: Final = _WORD.findall(
    "a an the of in for to and or by on at with from its is are one each who whom whose which that this has have had "
    "was were be been it as per all any last now before after not no their his her when where what how than into out up"
)
_CHINESE_FUNCTION_WORDS: Final = "的了在是和与及或按某一个其被把由为以于从对所每最后不前上下里中到给让用谁什么这那"


def of_style(document: ToolDocument) -> NDArray[np.float64]:
    """Return the features of a document's form: lengths, numbers of parameters, function words, character 2–4-grams."""
    text = document.description.lower()
    words, name = _WORD.findall(text), document.name
    sizes = [len(text) / 50, len(words) / 8, len(name) / 20, name.count("_"), text.endswith((".", "。"))]
    counted = [words.count(word) for word in _FUNCTION_WORDS] + [text.count(word) for word in _CHINESE_FUNCTION_WORDS]
    return _features(f"^{text}$", document, *sizes, *counted)


def of_schema(document: ToolDocument) -> NDArray[np.float64]:
    """Return the features of the parameters alone: their numbers, and character 2–4-grams of their schemas."""
    return _features(canonical_json(document.parameters), document)


BLIND: Final[Mapping[str, Features]] = {"style": of_style, "schema": of_schema}
"""Features of the blind models, by the models' names."""


def _features(text: str, document: ToolDocument, *more: float) -> NDArray[np.float64]:
    places = [zlib.crc32(text[i : i + n].encode()) % _HASHED for n in (2, 3, 4) for i in range(len(text) - n + 1)]
    roots = np.sqrt(np.bincount(places, minlength=_HASHED).astype(float))
    numbers = [len(document.parameters.get("properties", {})), len(document.required), 1, *more]
    return np.concatenate([roots / max(1.0, float(np.linalg.norm(roots))), np.array(numbers, float)])


def rivals(document: ToolDocument, documents: Iterable[ToolDocument]) -> list[ToolDocument]:
    """Return the documents that share a required parameter with `document`, itself among them."""
    return [each for each in documents if set(each.required) & set(document.required)]


def blind_beliefs(environments: Sequence[Environment], features: Features) -> list[Beliefs]:
    """Return the beliefs about the tools of each environment, from environments of its language and other domains.

    Where a language has one domain alone, there is nothing to learn from and all beliefs are 0.
    """
    rows: dict[str, NDArray[np.float64]] = {}
    examples: dict[tuple[Language, str], list[tuple[NDArray[np.float64], float]]] = defaultdict(list)
    for environment in environments:
        documents, own = _documents(environment), _own(environment)
        for document in documents:
            if (text := document.model_dump_json()) not in rows:
                rows[text] = features(document)
            if own & {each.name for each in rivals(document, documents)}:
                example = rows[text], 1.0 if document.name in own else -1.0
                examples[environment.language, environment.domain].append(example)
    terms = {}  # of ridge regression to 1 (own) and -1 (distractor); their sums leave a domain out in one pass
    for key, pairs in examples.items():
        seen, targets = map(np.array, zip(*pairs, strict=True))
        terms[key] = seen.T @ seen, seen.T @ targets
    weights: dict[tuple[Language, str], NDArray[np.float64]] = {}
    for language, domain in terms:
        others = [terms[key] for key in sorted(terms) if key[0] == language and key[1] != domain]
        if others:
            grams, sums = zip(*others, strict=True)
            weights[language, domain] = np.linalg.solve(sum(grams) + np.eye(len(sums[0])), sum(sums))

    def belief(environment: Environment, document: ToolDocument) -> float:
        learnt = weights.get((environment.language, environment.domain))
        # Rounded, so that another machine's last digits decide nothing.
        return 0.0 if learnt is None else round(float(rows[document.model_dump_json()] @ learnt), 6)

    return [{document.name: belief(each, document) for document in _documents(each)} for each in environments]


def blind_accuracy(
    environments: Sequence[Environment], beliefs: Sequence[Mapping[str, float]]
) -> dict[Language, BlindAccuracy]:
    """Return the accuracy of beliefs by language.

    A language is left out if it has no group of rivals, or a single domain, since nothing can be learnt there.
    """
    domains = {(environment.language, environment.domain) for environment in environments}
    num_domains = Counter(language for language, _ in domains)
    shares: dict[Language, list[tuple[float, float]]] = defaultdict(list)
    for environment, believed in zip(environments, beliefs, strict=True):
        documents, own = _documents(environment), _own(environment)
        for document in (document for document in documents if document.name in own):
            names = [each.name for each in rivals(document, documents)]
            picked = [name in own for name in names if believed[name] == max(believed[each] for each in names)]
            if not own.issuperset(names):
                chance = sum(name in own for name in names) / len(names)
                shares[environment.language].append((sum(picked) / len(picked), chance))
    found = {}
    for language, pairs in sorted((each, shares[each]) for each in shares if num_domains[each] > 1):
        accuracy, chance = (round(sum(column) / len(pairs), 4) for column in zip(*pairs, strict=True))
        found[language] = BlindAccuracy(accuracy=accuracy, chance=chance, num_tools=len(pairs))
    return found


def _documents(environment: Environment) -> list[ToolDocument]:
    return [tool.document for tool in environment.all_tools]


def _own(environment: Environment) -> set[str]:
    return {tool.document.name for tool in environment.tools}
