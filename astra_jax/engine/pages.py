"""Which page holds what: free ones, referenced ones, and idle ones that are kept for whoever asks for the same tokens.

A full page is found by its tokens and all before them; the last page of a sequence, not full yet, too, by exactly its
tokens. Pages that no sequence refers to any more stay until their place is needed, the longest idle one first.
"""

from __future__ import annotations

import hashlib
from array import array
from collections import OrderedDict
from collections.abc import Sequence

Content = bytes
"""Digest of all tokens up to the end of a page, and of what they were computed with."""
Known = tuple[Content, int]
"""What is known to lie in a page, and in how many of its tokens."""


def first_content(salt: str, policy_version: int) -> Content:
    """Return what stands before the first page."""
    # A digest too, so that no salt can be mistaken for tokens.
    return hashlib.blake2b(f"{policy_version}/{salt}".encode(), digest_size=16).digest()


def content_after(before: Content, ids: Sequence[int]) -> Content:
    """Return what a page with these tokens, full or not, is known by."""
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
        self._contents: list[list[Known]] = [[] for _ in range(num_pages)]

    @property
    def num_available(self) -> int:
        """Pages that `take` could give."""
        return len(self._free) + len(self._idle)

    def take(self, count: int) -> list[int] | None:
        """Return so many pages that are nobody's, each referred to once; None if there are fewer."""
        if count > self.num_available:
            return None
        pages = []
        for _ in range(count):
            if self._free:
                page = self._free.pop()
            else:
                page, _ = self._idle.popitem(last=False)
                self._forget(page, 0)
            self._references[page] = 1
            pages.append(page)
        return pages

    def refer(self, page: int) -> None:
        """Add a reference."""
        self._idle.pop(page, None)
        self._references[page] += 1

    def release(self, page: int) -> None:
        """Drop a reference; a page without one is idle if something is known to lie in it, else free."""
        if self._references[page] < 1:
            raise ValueError(f"page {page} has no reference to release")
        self._references[page] -= 1
        if self._references[page] == 0:
            if self._contents[page]:
                self._idle[page] = None
            else:
                self._free.append(page)

    def num_references(self, page: int) -> int:
        """Return how many sequences refer to a page."""
        return self._references[page]

    def is_shared(self, page: int) -> bool:
        """Say whether more than one sequence refers to a page: then none may write to it."""
        return self._references[page] > 1

    def find(self, content: Content) -> int | None:
        """Return the page in which this lies."""
        return self._by_content.get(content)

    def know(self, page: int, content: Content, num_tokens: int) -> None:
        """Keep in mind what lies in the first so many tokens of a page; what lies in another already is left there."""
        if content not in self._by_content:
            self._by_content[content] = page
            self._contents[page].append((content, num_tokens))

    def write_after(self, page: int, num_tokens: int) -> None:
        """Forget what is known of a page beyond its first so many tokens: others are written there."""
        self._forget(page, num_tokens)

    def forget_all(self) -> None:
        """Know nothing of any page any more: other weights would have computed something else."""
        for page in list(self._idle):
            self._free.append(page)
        self._idle.clear()
        self._by_content.clear()
        self._contents = [[] for _ in range(self.num_pages)]

    def _forget(self, page: int, but_first: int) -> None:
        for content, num_tokens in self._contents[page]:
            if num_tokens > but_first:
                del self._by_content[content]
        self._contents[page] = [known for known in self._contents[page] if known[1] <= but_first]
