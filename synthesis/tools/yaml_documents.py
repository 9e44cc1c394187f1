"""YAML as JSON sees it: text keys; `=` and dates are text.

If a text cannot be read, one rule mends it: tabs at the ends of lines go. YAML 1.2 allows them (section 6.2), the
loader does not.
"""

from __future__ import annotations

import re
from typing import Any, ClassVar

import yaml
from yaml.scanner import ScannerError

from synthesis.records import JsonValue


class _JsonLoader(yaml.SafeLoader):
    yaml_implicit_resolvers: ClassVar[dict[str, Any]] = {
        first: [(tag, pattern) for tag, pattern in resolvers if not re.search(r"timestamp|:value$", tag)]
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }


def parsed_yaml(text: str) -> tuple[JsonValue, tuple[str, ...]]:
    """Return a YAML text as JSON sees it, and the rules that mended it.

    Raises:
        ValueError: it is no YAML.

    >>> parsed_yaml("200: 2024-01-01")
    ({'200': '2024-01-01'}, ())
    """
    try:
        try:
            return _as_json(yaml.load(text, _JsonLoader)), ()
        except ScannerError:
            mended = re.sub(r"[ \t]*\t[ \t]*$", "", text, flags=re.MULTILINE)
            if mended == text:
                raise
            return _as_json(yaml.load(mended, _JsonLoader)), ("tab at the end of a YAML line removed",)
    except yaml.YAMLError as error:
        raise ValueError(f"no YAML: {error}") from error


def _as_json(value: Any) -> JsonValue:
    """Give YAML mappings text keys, so that `200:` in a specification is a status and not a number."""
    if isinstance(value, dict):
        return {str(key): _as_json(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple | set):
        return [_as_json(inner) for inner in value]
    return value if value is None or isinstance(value, str | int | float | bool) else str(value)
