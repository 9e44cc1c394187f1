"""The fingerprint of a result: config, contents of its inputs, and source of the code, as one flat table.

Two tables are compared line by line, so that a refusal can list the differences. Numbers and truth values stand as they
are, other values as digests: no path, key or text of the user gets into a manifest.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

from synthesis.run.destination import DestinationRefused
from synthesis.run.json_values import JsonValue, canonical_json

_SHOWN_AT_ONCE: Final = 8
_ABSENT: Final = "absent"

Fingerprint = dict[str, JsonValue]
"""Value or digest of each setting, input or file that decides a result, by name (`seed`, `source of …`)."""


class MadeOtherwise(DestinationRefused):
    """An earlier result was made with another config, other inputs or other code; the message lists the differences."""


def digest(value: JsonValue) -> str:
    """Name a JSON value by its hash.

    >>> digest({"a": 1, "b": 2}) == digest({"b": 2, "a": 1}), len(digest(None))
    (True, 16)
    """
    return sha256(canonical_json(value).encode()).hexdigest()[:16]


def flattened(config: Mapping[str, Any], *, leave_out: Collection[str] = ()) -> Fingerprint:
    r"""Write the values of a config one per line, nested keys with dots, without those of `leave_out`.

    >>> flattened({"seed": 1, "wandb": None, "model": {"layers": 2, "remat": "full"}}, leave_out={"model.remat"})
    {'seed': 1, 'wandb': None, 'model.layers': 2}
    >>> flattened({"name": "a"}) == {"name": digest("a")}
    True
    """

    def lines(prefix: str, values: Mapping[str, Any]) -> Iterator[tuple[str, JsonValue]]:
        for key, value in values.items():
            name = f"{prefix}{key}"
            if name in leave_out:
                continue
            if isinstance(value, Mapping) and value:  # an empty table keeps its line, or emptying it would not show
                yield from lines(f"{name}.", value)
            else:
                yield name, value if value is None or isinstance(value, (bool, int, float)) else digest(value)

    return dict(lines("", config))


def differences(before: Mapping[str, JsonValue], now: Mapping[str, JsonValue]) -> list[str]:
    """List the differences between two fingerprints, one for each line.

    >>> differences({"seed": 0, "epochs": 2, "source of a.py": "1f"}, {"seed": 1, "source of a.py": "2e"})
    ['epochs: 2 before, absent now', 'seed: 0 before, 1 now', 'source of a.py: changed']
    """
    found = []
    for name in sorted(before.keys() | now.keys()):
        both = [table.get(name, _ABSENT) for table in (before, now)]
        said = ["another" if isinstance(value, str) and value != _ABSENT else str(value) for value in both]
        is_digest = all(isinstance(table.get(name), str) for table in (before, now))
        if both[0] != both[1]:
            found.append(f"{name}: changed" if is_digest else f"{name}: {said[0]} before, {said[1]} now")
    return found


def require_same(where: Path, before: Mapping[str, JsonValue], now: Mapping[str, JsonValue], *, advice: str) -> None:
    """Refuse to go on with a result of another fingerprint.

    Raises:
        MadeOtherwise: the two differ; the message lists the differences and ends with the advice.
    """
    differing = differences(before, now)
    if differing:
        more = f"; and {len(differing) - _SHOWN_AT_ONCE} more" if len(differing) > _SHOWN_AT_ONCE else ""
        listed = "; ".join(differing[:_SHOWN_AT_ONCE]) + more
        raise MadeOtherwise(
            f"{where}: this result was made with another config, other inputs or other code: {listed}. {advice}"
        )


def digest_of_files(files: Iterable[Path]) -> str:
    """Name the bytes of some files, in the order given; `absent` if one is missing."""
    hashed = sha256()
    for path in files:
        if not path.is_file():
            return _ABSENT
        hashed.update(sha256(path.read_bytes()).digest())  # file by file, so that it matters where one ends
    return hashed.hexdigest()[:16]
