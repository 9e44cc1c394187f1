"""What the next call of a program does: whose tokens are read, whose message goes on, and in which rows.

No JAX and no clock: a schedule follows from the sessions, in the order in which they asked, and from the pages.

    Track      what a decoder knows of one session
    PageBook   which pages hold what (`pages`)
    Schedule   the two above → the rows of the next call
"""

from __future__ import annotations

import collections
import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from astra_jax.engine.interface import DecoderError, Sampling, Session
from astra_jax.engine.pages import Content, PageBook, content_after, first_content

_MANY_ROWS: Final = 8


class RowShape(NamedTuple):
    """Rows of one compiled program, on each shard: so many prefixes, each read by so many rows."""

    prefixes: int
    rows_per_prefix: int


@dataclass(frozen=True)
class Limits:
    """How many sequences of which length, and in which shapes they are computed: all that decides what is compiled."""

    max_prompt_tokens: int
    """Of a session's first call; what is longer is the row's own."""
    max_tokens: int
    """Of a sequence."""
    num_pages: int
    """Of a shard."""
    page_tokens: int
    row_shapes: tuple[RowShape, ...]
    """In which a call can sample, the largest first."""
    sample_tokens: int
    """The most tokens that a call samples in a row."""
    read_rows: int
    """Sequences that a call reads tokens of, on each shard, where they go on from what was read before."""
    read_tokens: int
    """The most of each."""
    first_read_rows: int
    """Sequences that a call reads the first tokens of, on each shard."""
    first_read_tokens: int
    """The most of each."""
    first_sample_tokens: int | None = None
    """The most where a message begins, for somebody who waits for its first word; none: as many."""
    shorter_read_tokens: tuple[int, ...] = ()
    """Shorter rows, in rising order, of the calls that read much or begin, for the same somebody."""
    leave_share: float = 7 / 8
    """A call that samples leaves off when so many of its rows, or fewer, go on; below 1."""

    def __post_init__(self) -> None:
        if not 0 <= self.leave_share < 1:
            raise DecoderError(
                f"expected a leave_share from 0 to below 1, found {self.leave_share}: no call would sample"
            )
        if self.num_pages < self.pages_for(self.max_tokens) + 1:
            raise DecoderError(
                f"expected pages for one sequence of {self.max_tokens} tokens and one to copy, "
                f"{self.pages_for(self.max_tokens) + 1} of {self.page_tokens} tokens, found {self.num_pages}"
            )

    def pages_for(self, num_tokens: int) -> int:
        """Return how many pages so many tokens take."""
        return -(-num_tokens // self.page_tokens)

    @property
    def prefix_table_pages(self) -> int:
        """How many pages of a prefix a call is told of."""
        return max(1, self.pages_for(self.max_prompt_tokens))

    @property
    def own_table_pages(self) -> tuple[int, ...]:
        """How many pages of its own a row of a call has, one of three: half of a longest response's, all, a sequence's.

        What follows a prefix may begin within its last page; and a session's first call may be short, others long.
        Where nobody knows how long a prompt is, a sixteenth of a longest sequence, a quarter, all.
        """
        if self.max_prompt_tokens == 0:
            longest = self.pages_for(self.max_tokens)
            return -(-longest // 16), -(-longest // 4), longest
        response = self.pages_for(self.max_tokens - self.max_prompt_tokens + self.page_tokens - 1)
        return -(-response // 2), response, max(response, self.pages_for(self.max_tokens))

    def read_shape(self, num_tokens: int, *, begins: bool) -> tuple[int, int]:
        """Return how many sequences of a shard a call reads, and the most tokens of each, where one has so many."""
        most = next((most for most in self.shorter_read_tokens if num_tokens <= most), self.first_read_tokens)
        # What tools answer is short, and read in two calls at most, or in so many as compute half of a long one's rows;
        # a prompt, or a history that was let go of, is long.
        num_short = -(-num_tokens // self.read_tokens)
        computed = num_short * self.read_rows * self.read_tokens
        if not begins and (num_short <= 2 or 2 * computed <= self.first_read_rows * most):
            return self.read_rows, self.read_tokens
        return self.first_read_rows, most

    def own_table_sizes(self, shape: RowShape) -> tuple[int, ...]:
        """Return how many pages of their own the rows of a call may be told of; the least that suffices is taken.

        Calls of many rows have a size more, for short rows. Calls of few rows read little, and each size is one more
        program to compile.
        """
        is_large = shape == self.row_shapes[0] and shape.prefixes * shape.rows_per_prefix >= _MANY_ROWS
        return self.own_table_pages if is_large else self.own_table_pages[1:]

    def read_prefix_pages(self, track: Track) -> int:
        """Return how many pages of a sequence are read as its prefix: fewer while its prompt is being read."""
        return min(self.num_prefix_pages(track.num_prompt_tokens), track.num_cached // self.page_tokens)

    def read_kinds(self) -> list[tuple[bool, int, int]]:
        """Return all that calls which read differ in: whether they begin, and their `read_shape`."""
        lengths = range(1, self.max_tokens)
        kinds = ((begins, *self.read_shape(most, begins=begins)) for begins in (True, False) for most in lengths)
        return list(dict.fromkeys(kinds))

    def num_prefix_pages(self, num_prompt_tokens: int) -> int:
        """Return how many pages of a sequence are its prefix: full ones of its prompt, whose last token is in none."""
        return min(num_prompt_tokens - 1, self.max_prompt_tokens) // self.page_tokens


@dataclass(eq=False)
class Track:
    """What a decoder knows of one session, and the message it is asked for."""

    session: Session
    shard: int
    policy_version: int
    num_prompt_tokens: int
    """Tokens of its first call: draws are counted from there."""
    ids: list[int] = field(default_factory=list)
    """All tokens, the last of which is in no page."""
    table: list[int] = field(default_factory=list)
    num_cached: int = 0
    """Tokens that lie in the pages of the table."""
    contents: list[Content] = field(default_factory=list)
    """Of its full pages."""
    sampling: Sampling | None = None
    """Of the message that it is asked for; None between two."""
    said: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    raw_logprobs: list[float] = field(default_factory=list)
    kept: list[list[int]] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)
    ticket: int = 0
    """Its place in the order in which messages were asked for."""

    @property
    def num_unread(self) -> int:
        """Given tokens that have to be read before it can sample."""
        return len(self.ids) - 1 - self.num_cached

    @property
    def num_left(self) -> int:
        """Tokens that its message may still get."""
        return 0 if self.sampling is None else self.sampling.max_tokens - len(self.said)


class Copy(NamedTuple):
    """A page to copy before its content is added to: another sequence reads it as well."""

    start: int
    end: int


class ReadRow(NamedTuple):
    """Tokens of one sequence to read, on from those in its pages."""

    track: Track
    ids: list[int]
    copy: Copy | None


class SampleRow(NamedTuple):
    """A sequence that samples, in one row."""

    track: Track
    max_tokens: int
    copy: Copy | None


class SaidRow(NamedTuple):
    """What a row sampled in a call: for each token, as `interface.Generated` has it."""

    ids: list[int]
    logprobs: list[float]
    raw_logprobs: list[float]
    kept: list[list[int]]

    def first(self, count: int) -> SaidRow:
        """Return so many of the tokens."""
        return SaidRow(self.ids[:count], self.logprobs[:count], self.raw_logprobs[:count], self.kept[:count])


@dataclass(frozen=True)
class Read:
    """A call that reads; for each shard its rows."""

    rows: list[list[ReadRow]]
    begins: bool
    """Whether nothing of its sequences was read before."""
    most_rows: int
    """Of a shard."""
    most_tokens: int
    """Of a row."""

    def all_rows(self) -> Iterable[ReadRow]:
        """Return the rows of all shards."""
        return itertools.chain.from_iterable(self.rows)


@dataclass(frozen=True)
class Sample:
    """A call that samples; for each shard the rows of each prefix."""

    shape: RowShape
    rows: list[list[list[SampleRow]]]
    leave_at: int
    """It leaves off when only so many rows go on."""

    def all_rows(self) -> Iterable[SampleRow]:
        """Return the rows of all shards and prefixes."""
        return itertools.chain.from_iterable(itertools.chain.from_iterable(self.rows))


class Schedule:
    """Sessions and their pages, over the shards of a decoder."""

    def __init__(self, limits: Limits, num_shards: int, vocab_size: int):
        self.limits, self._vocab_size = limits, vocab_size
        self.books = [PageBook(limits.num_pages) for _ in range(num_shards)]
        self.tracks: dict[Session, Track] = {}  # in the order of their tickets
        self._unread: set[Track] = set()  # all tracks that have tokens to read, and until the next look some others
        self._tickets = itertools.count()
        self._next_shard = itertools.cycle(range(num_shards))
        self._shard_of_prompt: dict[Content, int] = {}
        """The newest last, and no more than there are pages: of an older one nothing is left."""
        self._most_prompts = num_shards * limits.num_pages

    # --- what sessions ask for ---

    def require_room(self, ids: Sequence[int], sampling: Sampling) -> None:
        """Refuse what can never be sampled.

        Raises:
            DecoderError: there is nothing to go on from, or nothing to sample; it is too long; or an id is none of the
                vocabulary.
        """
        if not ids or sampling.max_tokens < 1:
            raise DecoderError(
                f"expected tokens to go on from and at least one to sample, found {len(ids)} and {sampling.max_tokens}"
            )
        if len(ids) + sampling.max_tokens > self.limits.max_tokens:
            raise DecoderError(
                f"expected sequences of at most {self.limits.max_tokens} tokens, found {len(ids)} and up to "
                f"{sampling.max_tokens} more; raise the limit or shorten the prompt"
            )
        for least, most in [(min(ids), max(ids)), *((stop_id, stop_id) for stop_id in sampling.stop_ids)]:
            if least < 0 or most >= self._vocab_size:
                raise DecoderError(
                    f"expected token ids from 0 to {self._vocab_size - 1}, found {least if least < 0 else most}; a "
                    "tokenizer of another model?"
                )

    def ask(self, session: Session, ids: Sequence[int], sampling: Sampling, policy_version: int) -> Track:
        """Take in that a session, which is being sampled nothing for, wants a message after `ids`."""
        track = self.tracks.pop(session, None)
        if track is not None and track.ids != list(ids[: len(track.ids)]):
            self._let_go(track)  # its history was rewritten: what is cached of it may still be found by content
        if track is None:
            num_prompt_tokens = session.num_prompt_tokens or len(ids)
            track = Track(session, self._shard_for(session, ids, policy_version), policy_version, num_prompt_tokens)
        if track.policy_version != policy_version:
            self._let_go(track)
            track.policy_version = policy_version
        track.num_prompt_tokens = min(track.num_prompt_tokens, len(ids))  # of its prompt less may be left
        track.ids = list(ids)
        track.sampling, track.said, track.versions = sampling, [], []
        track.logprobs, track.raw_logprobs, track.kept = [], [], []
        track.ticket = next(self._tickets)
        self.tracks[session] = track
        self._unread.add(track)
        return track

    def _shard_for(self, session: Session, ids: Sequence[int], policy_version: int) -> int:
        # Sessions with one prompt go to one shard: there it is read once.
        content = content_after(first_content(session.salt, policy_version), ids)
        shard = self._shard_of_prompt.pop(content, None)
        shard = next(self._next_shard) if shard is None else shard
        self._shard_of_prompt[content] = shard
        if len(self._shard_of_prompt) > self._most_prompts:
            del self._shard_of_prompt[next(iter(self._shard_of_prompt))]
        return shard

    def forget(self, session: Session) -> None:
        """Let go of a session and its pages."""
        track = self.tracks.pop(session, None)
        if track is not None:
            self._let_go(track)
            self._unread.discard(track)

    def forget_contents(self) -> None:
        """Let go of all that is cached."""
        for track in self.tracks.values():
            self._let_go(track)
        for book in self.books:
            book.forget_all()
        self._shard_of_prompt.clear()

    def _let_go(self, track: Track) -> None:
        for page in reversed(track.table):
            self.books[track.shard].release(page)
        track.table, track.num_cached, track.contents = [], 0, []
        self._unread.add(track)

    # --- the next call ---

    def next_read(self) -> Read | None:
        """Return what to read next, the sessions that asked first before others; None if it can wait.

        It waits while all rows can be filled with what is read already, no call of its own is full, and who asked
        first has nothing to be read.
        """
        self._unread = {track for track in self._unread if track.sampling is not None and track.num_unread > 0}
        asking = self._asking() if self._unread else []
        if not asking or (asking[0] not in self._unread and not self._lacks_rows(asking)):
            return None
        rows: list[list[ReadRow]] = [[] for _ in self.books]
        being_read: set[tuple[int, Content]] = set()
        taken: set[Session] = set()
        kind: tuple[bool, int, int] | None = None
        for track in asking:
            if track not in self._unread:
                continue
            self._adopt(track)
            if track.num_unread == 0:
                continue
            # Those that begin need no history, and those with much to read have longer rows: programs of their own.
            begins = track.num_cached == 0
            of_track = (begins, *self.limits.read_shape(track.num_unread, begins=begins))
            kind = kind or of_track
            _, most_rows, most_tokens = kind
            if of_track != kind or len(rows[track.shard]) == most_rows:
                continue
            count = min(track.num_unread, most_tokens)
            stretch = (track.shard, self._content_of_stretch(track, count))
            if stretch in being_read:
                continue  # a sibling reads the same tokens; they are found when it has
            made = self._room_for(track, count, taken)
            if made is None:
                continue
            being_read.add(stretch)
            taken.add(track.session)
            rows[track.shard].append(ReadRow(track, track.ids[track.num_cached : track.num_cached + count], *made))
        return Read(rows, *kind) if kind is not None and any(rows) else None

    def _lacks_rows(self, asking: Sequence[Track]) -> bool:
        """Say whether reading would fill rows of some shard, or a call that reads."""
        num_rows = self.limits.row_shapes[0].prefixes * self.limits.row_shapes[0].rows_per_prefix
        unread = collections.Counter(track.shard for track in asking if track in self._unread)
        every = collections.Counter(track.shard for track in asking)
        return any(count >= self.limits.read_rows or every[shard] - count < num_rows for shard, count in unread.items())

    def next_sample(self) -> Sample | None:
        """Return what to sample next; None if no session can."""
        ready: list[list[Track]] = [[] for _ in self.books]
        for track in self._asking():
            if track not in self._unread or track.num_unread == 0:
                ready[track.shard].append(track)
        if not any(ready):
            return None
        placed = [[self._placed(tracks, shape) for tracks in ready] for shape in self.limits.row_shapes]
        shape, chosen = max(zip(self.limits.row_shapes, placed, strict=True), key=lambda pair: _worth(pair[0], pair[1]))
        rows = self._with_room(chosen)
        num_rows = sum(len(of_prefix) for shard in rows for of_prefix in shard)
        if num_rows == 0:
            return None
        # Others may be ready for the rows of those that have ended.
        return Sample(shape, rows, leave_at=int(num_rows * self.limits.leave_share) if num_rows > 1 else 0)

    def _placed(self, tracks: Sequence[Track], shape: RowShape) -> list[list[Track]]:
        """Put the sessions of one shard into rows, those of one prefix together.

        Who asked first is among them; then come those that fill all rows of a prefix, then the others.
        """
        prefixes: list[list[Track]] = []
        open_one: dict[int | None, list[Track]] = {}
        num_full = 0
        for track in tracks:
            prefix = self._prefix(track)
            rows = open_one.get(prefix)
            if rows is None or len(rows) == shape.rows_per_prefix:
                rows = open_one[prefix] = []
                prefixes.append(rows)
            rows.append(track)
            num_full += len(rows) == shape.rows_per_prefix
            if num_full == shape.prefixes:
                break
        rest = sorted(prefixes[1:], key=lambda rows: len(rows) < shape.rows_per_prefix)
        return [*prefixes[:1], *rest][: shape.prefixes]

    def _with_room(self, chosen: Sequence[Sequence[Sequence[Track]]]) -> list[list[list[SampleRow]]]:
        order = sorted((track for shard in chosen for prefix in shard for track in prefix), key=lambda t: t.ticket)
        made: dict[Session, SampleRow] = {}
        taken: set[Session] = set()
        for track in order:
            if track.num_unread > 0:
                continue  # it gave way to one that asked before
            first = self.limits.first_sample_tokens
            most = self.limits.sample_tokens if first is None or track.said else first
            count = min(most, track.num_left)
            room = self._room_for(track, count, taken)
            if room is None:
                continue
            taken.add(track.session)
            made[track.session] = SampleRow(track, count, *room)
        return [
            [[made[track.session] for track in of_prefix if track.session in made] for of_prefix in shard]
            for shard in chosen
        ]

    def _is_asking(self, track: Track) -> bool:
        return track.sampling is not None

    def _asking(self) -> list[Track]:
        return [track for track in self.tracks.values() if track.sampling is not None]

    def _prefix(self, track: Track) -> int | None:
        count = self.limits.num_prefix_pages(track.num_prompt_tokens)
        return track.table[count - 1] if count else None

    # --- pages ---

    def _adopt(self, track: Track) -> None:
        """Refer to the pages in which a sequence's next tokens lie already."""
        book, page_tokens = self.books[track.shard], self.limits.page_tokens
        if track.num_cached % page_tokens:
            return
        content, num_known = self._content_before(track, len(track.contents)), len(track.ids) - 1
        for first in range(track.num_cached, num_known, page_tokens):
            ids = track.ids[first : min(first + page_tokens, num_known)]
            after = content_after(content, ids)
            if (page := book.find(after)) is None:
                return
            book.refer(page)
            number = first // page_tokens
            # It may have been given room that it did not use.
            for unused in track.table[number:]:
                book.release(unused)
            track.table[number:] = [page]
            track.num_cached += len(ids)
            if len(ids) == page_tokens:
                track.contents.append(after)
            content = after

    def _content_of_stretch(self, track: Track, count: int) -> Content:
        number = track.num_cached // self.limits.page_tokens
        ids = track.ids[number * self.limits.page_tokens : track.num_cached + count]
        return content_after(self._content_before(track, number), ids)

    def _content_before(self, track: Track, number: int) -> Content:
        return track.contents[number - 1] if number else first_content(track.session.salt, track.policy_version)

    def _room_for(self, track: Track, count: int, taken: set[Session]) -> tuple[Copy | None] | None:
        """Give a sequence pages for so many more tokens, and say which to copy; None if there are none to be had."""
        book, page_tokens = self.books[track.shard], self.limits.page_tokens
        begins_in = track.num_cached // page_tokens
        shared = bool(track.num_cached % page_tokens) and book.is_shared(track.table[begins_in])
        wanted = self.limits.pages_for(track.num_cached + count) - len(track.table) + shared
        if wanted > 0:
            if (pages := self._pages(track, wanted, taken)) is None:
                return None
            track.table.extend(pages)
        copy = None
        if shared:  # the copy is the last page: what is behind the shared one holds nothing yet
            copy = Copy(track.table[begins_in], track.table[-1])
            book.release(track.table[begins_in])
            track.table[begins_in] = track.table.pop()
        if copy is None and begins_in < len(track.table):
            book.write_after(track.table[begins_in], track.num_cached % page_tokens)
        return (copy,)

    def _pages(self, track: Track, count: int, taken: set[Session]) -> list[int] | None:
        book = self.books[track.shard]
        if (pages := book.take(count)) is not None:
            return pages
        # Those that ask for nothing give way first, then those that asked last; they are read again in their turn.
        others = [
            other
            for other in self.tracks.values()
            if other.shard == track.shard
            and other.table
            and other is not track
            and other.session not in taken
            and (not self._is_asking(other) or other.ticket > track.ticket)
        ]
        others.sort(key=lambda other: (not self._is_asking(other), other.ticket))
        # If letting go of all of them were in vain, none loses anything.
        for number in range(_how_many_free(book, reversed(others), count - book.num_available) or 0):
            self._give_way(others[-1 - number])
        return book.take(count)

    def _give_way(self, track: Track) -> None:
        """Let go of the pages of a sequence that will go on: it looks for them again."""
        num_full = len(track.contents)
        rest = track.ids[num_full * self.limits.page_tokens : track.num_cached]
        # In the midst of a message it looks for exactly its last tokens; who comes back after that has more, which
        # are read together with these.
        if rest and track.sampling is not None and track.num_unread == 0:
            content = content_after(self._content_before(track, num_full), rest)
            self.books[track.shard].know(track.table[num_full], content, len(rest))
        self._let_go(track)

    # --- what a call has done ---

    def has_read(self, row: ReadRow) -> None:
        """Take in that the tokens of a row lie in its pages."""
        track = row.track
        track.num_cached += len(row.ids)
        self._know_full_pages(track)
        if track.num_unread == 0 and track.num_cached % self.limits.page_tokens:
            # The rest of a prompt, which its siblings go on from as well.
            number = len(track.contents)
            ids = track.ids[number * self.limits.page_tokens : track.num_cached]
            content = content_after(self._content_before(track, number), ids)
            self.books[track.shard].know(track.table[number], content, len(ids))

    def has_sampled(self, row: SampleRow, said: SaidRow) -> None:
        """Take in what a row has sampled: all but its last token lie in its pages."""
        track = row.track
        track.num_cached += len(said.ids)
        track.ids.extend(said.ids)
        track.said.extend(said.ids)
        track.logprobs.extend(said.logprobs)
        track.raw_logprobs.extend(said.raw_logprobs)
        track.kept.extend(said.kept)
        track.versions.extend([track.policy_version] * len(said.ids))
        self._know_full_pages(track)

    def _know_full_pages(self, track: Track) -> None:
        page_tokens = self.limits.page_tokens
        while (len(track.contents) + 1) * page_tokens <= track.num_cached:
            number = len(track.contents)
            ids = track.ids[number * page_tokens : (number + 1) * page_tokens]
            content = content_after(self._content_before(track, number), ids)
            track.contents.append(content)
            self.books[track.shard].know(track.table[number], content, page_tokens)


def _how_many_free(book: PageBook, tracks: Iterable[Track], wanted: int) -> int | None:
    """Return how many tracks, from the first on, must let go of their pages to free so many; None if all are too few.

    A page is free once all who refer to it have let go.
    """
    references: dict[int, int] = collections.defaultdict(int)
    for number, track in enumerate(tracks, 1):
        for page in track.table:
            references[page] += 1
            wanted -= references[page] == book.num_references(page)
        if wanted <= 0:
            return number
    return None


def _worth(shape: RowShape, placed: Sequence[Sequence[Sequence[Track]]]) -> tuple[float, int]:
    """Say how much of what a call costs is of use: a row costs one, a prefix two, a call of any size four."""
    used = sum(len(of_prefix) for shard in placed for of_prefix in shard)
    cost = len(placed) * (shape.prefixes * (shape.rows_per_prefix + 2) + 4)
    return used / cost, used
