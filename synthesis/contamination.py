"""Contamination: the overlap of a set of records with benchmark files that the user has.

    texts      of each record: first what the user asks, then sub-questions, messages, descriptions of tools
    n-grams    13 words in a row, in Chinese 13 characters, letter case and punctuation apart; a request of 4 to 12
               words counts if a text of the benchmark has exactly these
    nearest    cosine of a request and the benchmark's text that is nearest in meaning, if an embedding is given

A file is JSON, JSON lines (as BFCL's files are, whatever their suffix) or plain text, a text on each line. Every text
inside JSON counts; keys and texts of fewer than four words do not. The length of 13 words is that of GPT-3's own check
(arXiv 2005.14165, appendix C).
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from pydantic import BaseModel

from synthesis.embeddings import Embedding, EmbeddingModel, as_dense, installed_encoder, vectors_of
from synthesis.errors import InputUnusable
from synthesis.record_io import RECORD_TYPES, RecordSource, read_card, require_records
from synthesis.records import Environment, KeptRecord, ServerDocument, Trajectory
from synthesis.run.json_values import texts_in

NGRAM: Final = 13
SIMILAR: Final = 0.85
"""Cosine from which a request counts as similar to a text of the benchmark; paraphrases have about as much."""
_FEWEST_WORDS: Final = 4
_WORST: Final = 10
_ROWS_AT_ONCE: Final = 1024
_WORD: Final = re.compile(r"[\u3400-\u9fff\uf900-\ufaff]|[^\W_\u3400-\u9fff\uf900-\ufaff]+")


class BenchmarkText(NamedTuple):
    """One text of a benchmark file."""

    file: str
    text: str


class Hit(BaseModel, frozen=True, extra="forbid"):
    """One record that overlaps with a benchmark, and the place there."""

    record: str
    file: str
    ours: str
    """The shared words, or the request."""
    theirs: str
    amount: float
    """Share of the record's n-grams that the benchmark has, or the cosine."""


class Overlap(BaseModel, frozen=True, extra="forbid"):
    """The overlap of a set of records with benchmark files; shares are in [0, 1]."""

    records: int
    benchmark_texts: dict[str, int]
    """Number of texts of each file."""
    ngram: int = NGRAM
    ngram_hits: int
    """Number of records that share an n-gram, or their whole request, with the benchmark."""
    ngram_share: float
    ngram_worst: tuple[Hit, ...]
    """The records with the largest share of shared n-grams, the largest first."""
    embedding: str | None = None
    """Source of the cosines; None if there was none."""
    similar_share: float | None = None
    """Share of the requests with a cosine of `SIMILAR` or more."""
    nearest_mean: float | None = None
    nearest_worst: tuple[Hit, ...] = ()

    def in_words(self) -> list[str]:
        """Return the figures as sentences."""
        files = ", ".join(f"`{name}` ({count:,} texts)" for name, count in self.benchmark_texts.items())
        found = f"{self.ngram_hits:,} of {self.records:,} records ({self.ngram_share:.2%})"
        said = [f"{found} share {self.ngram} words in a row (in Chinese, characters) with {files}."]
        if self.similar_share is None:
            return [*said, "Meanings were not compared, which needs the extra `embeddings`."]
        near = f"{self.similar_share:.2%} of the requests have a cosine of {SIMILAR} or more to a text there"
        return [*said, f"{near}, by `{self.embedding}`; the mean of the nearest is {self.nearest_mean:.2f}."]


def overlap(
    texts: Mapping[str, Sequence[str]], against: Sequence[BenchmarkText], embedding: Embedding | None = None
) -> Overlap:
    """Compare the texts of records, by id, the request first, with those of a benchmark.

    >>> said = "Book a table for four people at the harbour restaurant on Friday evening at seven"
    >>> found = overlap({"a": [said], "b": ["Something else"]}, [BenchmarkText("bfcl.json", f"User: {said}!")])
    >>> found.ngram_hits, found.ngram_share, found.ngram_worst[0].record
    (1, 0.5, 'a')

    Raises:
        ValueError: there is no record, or no text of a benchmark.
    """
    if not texts or not against:
        raise ValueError(f"expected records and texts of a benchmark, found {len(texts)} and {len(against)}")
    theirs: dict[tuple[str, ...], int] = {}
    for number, text in enumerate(against):
        words = _words(text.text)
        for gram in _ngrams(words) if len(words) >= NGRAM else [words]:
            theirs.setdefault(gram, number)
    hits = []
    for record, (request, *others) in texts.items():
        words = _words(request)
        grams = {gram for text in (request, *others) for gram in _ngrams(_words(text))}
        grams |= {words} if _FEWEST_WORDS <= len(words) < NGRAM else set()
        if shared := sorted(grams & theirs.keys()):
            found, amount = against[theirs[shared[0]]], len(shared) / len(grams)
            hits.append(_hit(record, " ".join(shared[0]), found, amount))
    nearest = [] if embedding is None else list(_nearest(texts, against, embedding))
    cosines = [hit.amount for hit in nearest]
    return Overlap(
        records=len(texts),
        benchmark_texts=dict(Counter(text.file for text in against)),
        ngram_hits=len(hits),
        ngram_share=len(hits) / len(texts),
        ngram_worst=_worst(hits),
        embedding="local model" if isinstance(embedding, EmbeddingModel) else embedding,
        similar_share=sum(cosine >= SIMILAR for cosine in cosines) / len(texts) if cosines else None,
        nearest_mean=sum(cosines) / len(texts) if cosines else None,
        nearest_worst=_worst(nearest),
    )


def texts_of(record: KeptRecord) -> list[str]:
    """Return the texts of a record that a benchmark may share, what the user asks first."""
    match record:
        case Environment():
            asked = [record.question, *(each.question for each in record.sub_questions)]
            documents = [tool.document for tool in record.all_tools]
        case Trajectory():
            asked = [record.task.text, *(message.content for message in record.messages)]
            documents = list(record.tools)
        case ServerDocument():
            asked, documents = [record.description], list(record.tools)
        case _:
            kind = type(record).__name__
            raise ValueError(f"expected a trajectory, an environment or a server document, found {kind}")
    return [*asked, *(document.description for document in documents)]


def overlap_of(directory: Path, files: Sequence[Path]) -> Overlap:
    """Compare a record directory with benchmark files, by meaning as well if the encoder is installed."""
    against = read_benchmark(files)
    source: RecordSource[KeptRecord] = RecordSource(directory, RECORD_TYPES[read_card(directory).kind])
    require_records(source)
    encoder = installed_encoder()
    return overlap({record.id: texts_of(record) for record in source}, against, encoder)


def read_benchmark(paths: Iterable[Path]) -> list[BenchmarkText]:
    """Read the distinct texts of benchmark files.

    Raises:
        InputUnusable: a file is missing, no UTF-8, or holds no text of four words.
    """
    found: list[BenchmarkText] = []
    for path in paths:
        try:
            read = list(_texts_of_file(path.read_text(encoding="utf-8-sig")))
        except (OSError, UnicodeDecodeError, RecursionError) as error:
            raise InputUnusable(f"{path} cannot be read ({error}); name a file of JSON, JSON lines or text") from error
        long_enough = [text for text in dict.fromkeys(read) if len(_words(text)) >= _FEWEST_WORDS]
        if not long_enough:
            raise InputUnusable(f"{path} holds no text of {_FEWEST_WORDS} words or more; check the path")
        found += [BenchmarkText(path.name, text) for text in long_enough]
    return found


def _texts_of_file(text: str) -> Iterator[str]:
    try:
        yield from texts_in(json.loads(text))
    except ValueError:  # not one document of JSON
        for line in text.split("\n"):
            try:
                yield from texts_in(json.loads(line))
            except ValueError:
                yield line


def _words(text: str) -> tuple[str, ...]:
    return tuple(_WORD.findall(text.lower()))


def _ngrams(words: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    return (words[start : start + NGRAM] for start in range(len(words) - NGRAM + 1))


def _nearest(
    texts: Mapping[str, Sequence[str]], against: Sequence[BenchmarkText], embedding: Embedding
) -> Iterator[Hit]:
    theirs = vectors_of([text.text for text in against], embedding).T
    requests = [(record, request) for record, (request, *_) in texts.items()]
    ours = vectors_of([request for _, request in requests], embedding)
    for start in range(0, len(requests), _ROWS_AT_ONCE):
        cosines = as_dense(ours[start : start + _ROWS_AT_ONCE] @ theirs)
        for (record, request), row in zip(requests[start:], cosines, strict=False):
            yield _hit(record, request[:200], against[int(row.argmax())], float(row.max().round(4)))


def _hit(record: str, ours: str, found: BenchmarkText, amount: float) -> Hit:
    return Hit(record=record, file=found.file, ours=ours, theirs=found.text[:200], amount=amount)


def _worst(hits: Iterable[Hit]) -> tuple[Hit, ...]:
    return tuple(sorted(hits, key=lambda hit: (-hit.amount, hit.record))[:_WORST])
