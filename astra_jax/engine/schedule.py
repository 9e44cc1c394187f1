"""The schedule of a decoder: it chooses the sessions of the next call, and their pages.

It uses neither JAX nor a clock: the next call depends only on the sessions, the order in which they asked, and pages.

    next_read      a call that reads given tokens, until as many sessions can sample as there are rows
    next_sample    a call with one row for each session that can sample, those that asked first
    has_read, has_sampled    take in the results of a call, so that other sessions find the full pages

If pages run out, sessions that ask for nothing lose theirs first, then the sessions that asked last. No token is lost:
before such a session samples again, the tokens that are no longer in a page are read again.
"""

from __future__ import annotations

import collections
import itertools
from collections.abc import Sequence

from astra_jax.engine.interface import DecoderError, Sampling, Session
from astra_jax.engine.pages import Content, PageBook, content_after, first_content
from astra_jax.engine.sizes import Limits
from astra_jax.engine.tracks import Read, ReadRow, SaidRow, Sample, SampleRow, Track


class Schedule:
    """Sessions and their pages, over the shards of a decoder."""

    def __init__(self, limits: Limits, num_shards: int, vocab_size: int):
        self.limits, self._vocab_size = limits, vocab_size
        self.books = [PageBook(limits.num_pages) for _ in range(num_shards)]
        self.tracks: dict[Session, Track] = {}  # in the order of their tickets
        self._tickets = itertools.count()
        self._next_shard = itertools.cycle(range(num_shards))
        self._shard_of_prompt: dict[Content, int] = {}
        """Shard on which each prompt was read, the most recently used last; as many as there are pages."""
        self._most_prompts = num_shards * limits.num_pages

    # --- messages that sessions ask for ---

    def require_room(self, ids: Sequence[int], sampling: Sampling) -> None:
        """Refuse a message that can never be sampled.

        Raises:
            DecoderError: there are no given tokens, or none to sample; the sequence is too long; or an id is not in the
                vocabulary.
        """
        if not ids or sampling.max_tokens < 1:
            raise DecoderError(
                f"a message needs at least 1 given token and a max_tokens of at least 1, found {len(ids)} given tokens "
                f"and {sampling.max_tokens}"
            )
        if len(ids) + sampling.max_tokens > self.limits.max_tokens:
            raise DecoderError(
                f"expected sequences of at most {self.limits.max_tokens} tokens, found {len(ids)} and up to "
                f"{sampling.max_tokens} more; raise the limit or shorten the prompt"
            )
        for least, most in [(min(ids), max(ids)), *((stop_id, stop_id) for stop_id in sampling.stop_ids)]:
            if least < 0 or most >= self._vocab_size:
                raise DecoderError(
                    f"expected token ids from 0 to {self._vocab_size - 1}, found {least if least < 0 else most}; use "
                    "the tokenizer of this model"
                )

    def ask(self, session: Session, ids: Sequence[int], sampling: Sampling, policy_version: int) -> Track:
        """Begin a message behind the tokens `ids`, for a session that has no other message under way."""
        track = self.tracks.pop(session, None)
        if track is not None and track.ids != list(ids[: len(track.ids)]):
            self._let_go(track)  # its history was rewritten; pages of the part that is unchanged are found again
        if track is None:
            track = Track(session, self._shard_for(session, ids, policy_version), policy_version, len(ids))
        track.begin(list(ids), sampling, next(self._tickets))
        self.tracks[session] = track
        return track

    def _shard_for(self, session: Session, ids: Sequence[int], policy_version: int) -> int:
        # Sessions with the same prompt go to the same shard, so that it is read once. Dict order is order of last use.
        content = content_after(first_content(policy_version), ids)
        shard = self._shard_of_prompt.pop(content, None)
        shard = next(self._next_shard) if shard is None else shard
        self._shard_of_prompt[content] = shard
        if len(self._shard_of_prompt) > self._most_prompts:
            del self._shard_of_prompt[next(iter(self._shard_of_prompt))]
        return shard

    def forget(self, session: Session) -> None:
        """Give up a session and its pages."""
        track = self.tracks.pop(session, None)
        if track is not None:
            self._let_go(track)

    def forget_contents(self) -> None:
        """Forget the contents of all pages, such as those of earlier weights."""
        for track in self.tracks.values():
            self._let_go(track)
        for book in self.books:
            book.forget_all()
        self._shard_of_prompt.clear()

    def _let_go(self, track: Track) -> None:
        for page in reversed(track.table):
            self.books[track.shard].release(page)
        track.table, track.num_cached, track.contents = [], 0, []

    # --- the next call ---

    def next_read(self) -> Read | None:
        """Return the next call that reads, for the sessions that asked first; None if reading can wait.

        It can wait while other sessions fill all rows, the call would not be full, and the session that asked first has
        no token left to read.
        """
        asking = self._asking()
        if not asking or (asking[0].num_unread == 0 and not self._lacks_rows(asking)):
            return None
        rows: list[list[ReadRow]] = [[] for _ in self.books]
        being_read: set[tuple[int, Content | None]] = set()
        taken: set[Session] = set()
        kind: tuple[bool, int, int] | None = None
        for track in asking:
            if track.num_unread > 0:
                self._adopt(track)
            if track.num_unread == 0:
                continue
            # A call runs one compiled program. The first session decides which: whether rows begin, and their length.
            begins = track.num_cached == 0
            of_track = (begins, *self.limits.read_shape(track.num_unread, begins=begins))
            kind = kind or of_track
            _, most_rows, most_tokens = kind
            if of_track != kind or len(rows[track.shard]) == most_rows:
                continue
            count = min(track.num_unread, most_tokens)
            stretch = (track.shard, self._content_of_full_pages(track, count))
            if stretch in being_read:
                continue  # another row reads the same pages: this session adopts them afterwards
            if not self._make_room(track, count, taken):
                continue
            if stretch[1] is not None:
                being_read.add(stretch)
            taken.add(track.session)
            rows[track.shard].append(ReadRow(track, track.ids[track.num_cached : track.num_cached + count]))
        return Read(rows, *kind) if kind is not None and any(rows) else None

    def _lacks_rows(self, asking: Sequence[Track]) -> bool:
        """Say whether on some shard rows of sampling would stay empty, or a call that reads would be full."""
        num_rows = self.limits.row_counts[0]
        unread = collections.Counter(track.shard for track in asking if track.num_unread > 0)
        every = collections.Counter(track.shard for track in asking)
        return any(count >= self.limits.read_rows or every[shard] - count < num_rows for shard, count in unread.items())

    def next_sample(self) -> Sample | None:
        """Return the next call that samples, for the sessions that asked first; None if no session can."""
        limits = self.limits
        rows: list[list[SampleRow]] = [[] for _ in self.books]
        taken: set[Session] = set()
        for track in self._asking():
            of_shard = rows[track.shard]
            # Tokens may be unread since an earlier session took pages just now.
            if track.num_unread > 0 or len(of_shard) == limits.row_counts[0]:
                continue
            first = limits.first_sample_tokens
            count = min(limits.sample_tokens if first is None or track.said else first, track.num_left)
            if self._make_room(track, count, taken):
                taken.add(track.session)
                of_shard.append(SampleRow(track, count))
        if not taken:
            return None
        most_rows, num_rows = max(map(len, rows)), sum(map(len, rows))
        most_pages = max(len(row.track.table) for of_shard in rows for row in of_shard)
        return Sample(
            rows,
            most_rows=min(count for count in limits.row_counts if count >= most_rows),
            most_pages=min(table for table in limits.tables if table >= most_pages),
            # The call ends while its last rows still go on, so that waiting sessions can have the rows that are free.
            leave_at=int(num_rows * limits.leave_share) if num_rows > 1 else 0,
        )

    def _asking(self) -> list[Track]:
        return [track for track in self.tracks.values() if track.sampling is not None]

    # --- pages ---

    def _adopt(self, track: Track) -> None:
        """Extend a session's table by full pages that hold its next tokens already."""
        book, page_tokens = self.books[track.shard], self.limits.page_tokens
        if track.num_cached % page_tokens:
            return
        while track.num_unread >= page_tokens:
            ids = track.ids[track.num_cached : track.num_cached + page_tokens]
            content = content_after(self._content_before(track, len(track.contents)), ids)
            if (page := book.find(content)) is None:
                return
            book.refer(page)
            number = len(track.contents)
            # The session may have been given pages that it did not use.
            for unused in track.table[number:]:
                book.release(unused)
            track.table[number:] = [page]
            track.num_cached += page_tokens
            track.contents.append(content)

    def _content_of_full_pages(self, track: Track, count: int) -> Content | None:
        """Return the digest of the pages that the next `count` tokens fill; None if they fill no page."""
        number, page_tokens = len(track.contents), self.limits.page_tokens
        end = (track.num_cached + count) // page_tokens * page_tokens
        if end == number * page_tokens:
            return None
        return content_after(self._content_before(track, number), track.ids[number * page_tokens : end])

    def _content_before(self, track: Track, number: int) -> Content:
        return track.contents[number - 1] if number else first_content(track.policy_version)

    def _make_room(self, track: Track, count: int, taken: set[Session]) -> bool:
        """Give a session pages for `count` more tokens; return False if there are not enough pages."""
        wanted = self.limits.pages_for(track.num_cached + count) - len(track.table)
        if wanted <= 0:
            return True
        pages = self._pages(track, wanted, taken)
        track.table.extend(pages or [])
        return pages is not None

    def _pages(self, track: Track, count: int, taken: set[Session]) -> list[int] | None:
        book = self.books[track.shard]
        if (pages := book.take(count)) is not None:
            return pages
        # Sessions that ask for nothing give way first, then those that asked last; their tokens are read again later.
        others = [
            other
            for other in self.tracks.values()
            if other.shard == track.shard
            and other.table
            and other is not track
            and other.session not in taken
            and (other.sampling is None or other.ticket > track.ticket)
        ]
        others.sort(key=lambda other: (other.sampling is None, other.ticket))
        # If the pages of all of them are too few, none is taken.
        for number in range(
            book.how_many_free([other.table for other in reversed(others)], count - book.num_available)
        ):
            self._let_go(others[-1 - number])  # full pages that are not overwritten are found again later
        return book.take(count)

    # --- results of a call ---

    def has_read(self, row: ReadRow) -> None:
        """Note that the tokens of a row lie in its pages now, so that other sessions find them."""
        row.track.num_cached += len(row.ids)
        self._know_full_pages(row.track)

    def has_sampled(self, row: SampleRow, said: SaidRow) -> None:
        """Add the tokens that a row has sampled to its session."""
        row.track.add(said)
        self._know_full_pages(row.track)

    def _know_full_pages(self, track: Track) -> None:
        page_tokens = self.limits.page_tokens
        while (len(track.contents) + 1) * page_tokens <= track.num_cached:
            number = len(track.contents)
            ids = track.ids[number * page_tokens : (number + 1) * page_tokens]
            content = content_after(self._content_before(track, number), ids)
            track.contents.append(content)
            self.books[track.shard].know(track.table[number], content)
