"""Names of tools: legal for chat templates, unique inside a server, the source's name kept."""

from __future__ import annotations

import hashlib
import re
import unicodedata
from collections.abc import Iterable
from functools import lru_cache
from typing import Final

from synthesis.records import LEGAL_TOOL_NAME

MAX_NAME_LENGTH: Final = 64
_COUNTED: Final = frozenset({
    "limit", "offset", "skip", "count", "top", "width", "height", "latitude", "longitude", "lat", "lon", "lng",
})  # fmt: skip
_COUNTING: Final = (
    ("page", "size"), ("per", "page"), ("page", "number"), ("top", "k"), ("max", "results"), ("num", "results"),
    ("max", "tokens"), ("start", "index"), ("batch", "size"), ("chunk", "size"), ("timeout", "seconds"),
)  # fmt: skip


@lru_cache(maxsize=8192)  # the same few thousand names are asked for millions of times
def words_of(name: str) -> tuple[str, ...]:
    """Split an identifier into lower-case words.

    >>> words_of("getUserInfo"), words_of("order-items_v2")
    (('get', 'user', 'info'), ('order', 'items', 'v2'))
    """
    spaced = re.sub(r"([a-z0-9])([A-Z])", r"\1 \2", name)
    return tuple(word for word in re.split(r"[^a-z0-9\u3400-\u9fff]+", spaced.lower()) if word)


def is_name_of_number(name: str) -> bool:
    """Say whether a parameter is a number by its name alone, for any tool.

    >>> [is_name_of_number(name) for name in ("limit", "page_size", "maxResults", "issue_number", "page", "discount")]
    [True, True, True, False, False, False]
    """
    words = words_of(name)
    return words[-1:] != () and (words[-1] in _COUNTED or words[-2:] in _COUNTING)


def legal_names(names: Iterable[str]) -> list[str]:
    """Return one legal name per name, all different; a name that is legal and new already stays as it is.

    Letters that ASCII does not have are left out; a name of nothing else is called after its hash, so that the same
    name is always called the same.

    >>> legal_names(["search", "get user info", "search", "1st-try", "查询天气"])
    ['search', 'get_user_info', 'search_2', '1st-try', 'tool_22cf3c76']
    """
    wanted = []
    for name in names:
        ascii_letters = unicodedata.normalize("NFKD", name).encode("ascii", "ignore").decode()
        words = re.sub(r"[^A-Za-z0-9_-]+", "_", ascii_letters).strip("_-")[:MAX_NAME_LENGTH]
        code = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:8]
        wanted.append(name if LEGAL_TOOL_NAME.fullmatch(name) else words or f"tool_{code}")
    unique: dict[str, None] = {}
    for name in wanted:
        candidate, ordinal = name, 1
        # A numbered name must not be one that another tool wants: `search_2` is left to the tool that is called so.
        while candidate in unique or (ordinal > 1 and candidate in wanted):
            ordinal += 1
            candidate = f"{name[: MAX_NAME_LENGTH - len(f'_{ordinal}')]}_{ordinal}"
        unique[candidate] = None
    return [*unique]
