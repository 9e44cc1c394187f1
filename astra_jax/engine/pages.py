"""The book of pages: which are free, which are in use, and which are kept for reuse.

A full page is found by its tokens and all tokens before them, and several sequences may refer to it: it never changes.
A page that is not full belongs to one sequence. Full pages that no sequence refers to stay until their place is needed,
the longest idle one first.
"""

from __future__ import annotations

import hashlib
from array import array
from collections import Counter, OrderedDict
from collections.abc import Sequence

Content = bytes
"""Digest of all tokens up to the end of a page, and of the version of the weights."""


def first_content(policy_version: int) -> Content:
    """Return the content before the first page."""
    return hashlib.blake2b(str(policy_version).encode(), digest_size=16).digest()


def content_after(before: Content, ids: Sequence[int]) -> Content:
    """Return the content of a page with these tokens behind another."""
    # The digest of the page before is part of it: equal tokens behind other tokens are another content.
    digest = hashlib.blake2b(before, digest_size=16)
    digest.update(array("i", ids).tobytes())
    return digest.digest()


class PageBook:
    """The pages of one shard, by number: 0 … `num_pages` − 1."""

    def __init__(self, num_pages: int):
        self.num_pages = num_pages
        self._free = list(range(num_pages - 1, -1, -1))
        self._references = [0] * num_pages
        self._idle: OrderedDict[int, None] = OrderedDict()
        self._by_content: dict[Content, int] = {}
        self._contents: dict[int, Content] = {}

    @property
    def num_available(self) -> int:
        """Number of pages that `take` could give."""
        return len(self._free) + len(self._idle)

    def take(self, count: int) -> list[int] | None:
        """Return `count` free or idle pages, each with one reference; None if there are fewer."""
        if count > self.num_available:
            return None
        pages = []
        for _ in range(count):
            # Idle pages may be found again, so free pages are taken first, and then the page that is idle longest.
            if self._free:
                page = self._free.pop()
            else:
                page, _ = self._idle.popitem(last=False)
                del self._by_content[self._contents.pop(page)]
            self._references[page] = 1
            pages.append(page)
        return pages

    def refer(self, page: int) -> None:
        """Add a reference."""
        self._idle.pop(page, None)
        self._references[page] += 1

    def release(self, page: int) -> None:
        """Drop a reference; a page without one is idle if its content is known, else free."""
        if self._references[page] < 1:
            raise ValueError(f"page {page} has no reference to release")
        self._references[page] -= 1
        if self._references[page] == 0:
            if page in self._contents:
                self._idle[page] = None
            else:
                self._free.append(page)

    def how_many_free(self, tables: Sequence[Sequence[int]], wanted: int) -> int:
        """Return the number of tables, from the first on, whose release frees `wanted` pages; 0 if all free too few.

        A page is free when every table that refers to it is released.
        """
        references: Counter[int] = Counter()
        for number, table in enumerate(tables, 1):
            for page in table:
                references[page] += 1
                wanted -= references[page] == self._references[page]
            if wanted <= 0:
                return number
        return 0

    def find(self, content: Content) -> int | None:
        """Return the page with this content; None if there is none."""
        return self._by_content.get(content)

    def know(self, page: int, content: Content) -> None:
        """Note the content of a full page, unless another page has it already."""
        # A second page with the same content is not found, and is free as soon as its sequence releases it.
        if content not in self._by_content:
            self._by_content[content] = page
            self._contents[page] = content

    def forget_all(self) -> None:
        """Forget the content of all pages: with other weights it would be another."""
        self._free.extend(self._idle)
        self._idle.clear()
        self._by_content.clear()
        self._contents.clear()
