"""Configs: a TOML file and `key=value` overrides, read into a pydantic class."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Final, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from astra_jax.config_keys import keys_of
from astra_jax.errors import UsageError
from synthesis.run.places import fetch

ConfigT = TypeVar("ConfigT", bound=BaseModel)
_LIST_FAULTS: Final = ("tuple_type", "list_type", "set_type", "frozen_set_type")

CONFIGS = Path(__file__).with_name("configs").resolve()
"""Folder of the shipped configs: in a checkout a link to `configs/`, elsewhere part of the package."""


class Frozen(BaseModel):
    """A model that cannot be changed, and that refuses unknown keys."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class ConfigError(UsageError, ValueError):
    """A config cannot be used; the message names the file, the key, and the expected and the found value."""


def load_config(
    config_type: type[ConfigT], path: Path, overrides: Sequence[str] = (), *, is_fetched: bool = True
) -> ConfigT:
    """Read a config; overrides name nested keys with dots (`optimizer.learning_rate=1e-3`), values are TOML.

    One value is a list of one where a key takes a list: `tool_documents = "mydocs"`.
    The files of its places in a bucket, but for weights, are brought onto this machine if `is_fetched`.

    Raises:
        ConfigError: no such file, not TOML, an unknown key, or a value of the wrong type.
        PlaceUnusable: a bucket does not answer or may not be read.
    """
    values = read_toml(path)
    for override in overrides:
        _override(values, override)
    _make_lists_of_one(config_type, values)
    config = parse_config(config_type, values, where=str(path), folder=Path(path).parent)
    for _, place in _paths(config) if is_fetched else ():
        fetch(place)
    return config


def read_toml(path: Path) -> dict[str, Any]:
    """Read a config file without knowing its class.

    Raises:
        ConfigError: no such file, or not TOML.
    """
    try:
        text = Path(path).read_text(encoding="utf-8")
    except FileNotFoundError as error:
        shipped = CONFIGS / Path(path).name
        lies = f"one of that name is shipped: {shipped}" if shipped.is_file() else f"examples are shipped in {CONFIGS}"
        raise ConfigError(f"there is no config at {path}; {lies}") from error
    except OSError as error:
        raise ConfigError(f"the config {path} cannot be read: {error.strerror}; see {CONFIGS}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"the config {path} is not UTF-8 text ({error}); save it as UTF-8") from error
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path} is not TOML: {error}") from error


def parse_config(
    config_type: type[ConfigT], values: dict[str, Any], *, where: str, folder: Path | None = None
) -> ConfigT:
    """Validate the values of a config; the files of functions that it names may be in `folder`.

    Raises:
        ConfigError: a value is wrong; the error names the first one with its full path.
    """
    try:
        config = config_type.model_validate(values, context={"folder": folder})
    except ValidationError as error:
        # A value that may have one of several types has a fault for each; an unknown key is the most telling one.
        faults = sorted(error.errors(), key=lambda fault: fault["type"] != "extra_forbidden")
        raise ConfigError(f"{where}: {_in_words(config_type, values, faults[0])}") from error
    require_local_paths(dict(config), where=where)
    return config


def require_local_paths(values: Mapping[str, Any], *, where: str) -> None:
    """Require that no path among the values, at any depth, is a URL: a key that takes one has made a stage of it.

    Raises:
        ConfigError: a path is a URL.

    >>> require_local_paths({"data": (Path("records"),), "cache": Path("gs://bucket/replies")}, where="sft.toml")
    Traceback (most recent call last):
    astra_jax.config.ConfigError: sft.toml: cache: expected a path on this machine, found the URL gs://bucket/replies
    """
    for key, path in _paths(values):
        if url := re.fullmatch(r"([A-Za-z][A-Za-z0-9+.-]+):/+(.*)", str(path)):
            raise ConfigError(
                f"{where}: {'.'.join(key)}: expected a path on this machine, found the URL {url[1]}://{url[2]}"
            )


def _paths(value: Any) -> Iterator[tuple[tuple[str, ...], Path]]:
    """Yield every path in a value, with the keys that lead to it."""
    if isinstance(value, Path):
        yield (), value
    if isinstance(value, BaseModel):
        value = dict(value)
    if isinstance(value, list | tuple):
        value = dict(enumerate(value))
    if isinstance(value, Mapping):
        for key, part in value.items():
            for keys, path in _paths(part):
                yield (str(key), *keys), path


def _in_words(config_type: type[BaseModel], values: Mapping[str, Any], fault: Mapping[str, Any]) -> str:
    parts = _keys_of(values, fault["loc"])
    key = ".".join(map(str, parts)) or "the config"
    if fault["type"] == "missing":
        return f"{key} has no value; set it"
    if fault["type"] != "extra_forbidden":
        # A whole table is not shown: one of its values may be a secret.
        found = "" if isinstance(fault["input"], Mapping) else f", found {fault['input']!r}"
        expected = fault["msg"].removeprefix("Value error, ")
        if fault["type"] in _LIST_FAULTS:
            expected = """expected a list such as ["a", "b"], in a shell between apostrophes"""
        return f"{key}: {expected}{found}"
    known = [tuple(key.path.split(".")) for key in keys_of(config_type)]
    path = tuple(part for part in parts if isinstance(part, str))
    siblings = sorted(each[-1] for each in known if each[:-1] == path[:-1])
    # A misspelt key of this table first; then the same key of another table, where it may belong.
    near = [(*path[:-1], name) for name in get_close_matches(path[-1], siblings, n=1)]
    near += [each for each in known if each[-1] == path[-1]]
    meant = f"; did you mean {'.'.join(near[0])}?" if near else ";"
    return f"unknown key {key}{meant} expected one of {', '.join(siblings)}"


def _keys_of(values: Any, location: Sequence[str | int]) -> list[str | int]:
    """Return the keys of the file in the location of pydantic's fault, which also names the types that it tried.

    >>> _keys_of({"model": {"layers": 1}}, ("model", "ModelConfig", "layers"))
    ['model', 'layers']
    """
    keys: list[str | int] = []
    for number, part in enumerate(location, 1):
        if isinstance(part, int) and isinstance(values, list):
            keys.append(part)
            values = values[part] if part < len(values) else None
        elif isinstance(values, dict) and (part in values or (number == len(location) and part != "[key]")):
            keys.append(part)
            values = values.get(part)
    return keys


def _make_lists_of_one(config_type: type[BaseModel], values: dict[str, Any]) -> None:
    """Make a list of one of each value that has to be a list."""
    try:
        config_type.model_validate(values)
    except ValidationError as error:
        for fault in error.errors():
            # A text that begins with "[" is a list whose quotes the shell has removed.
            is_one = not isinstance(fault["input"], dict) and not str(fault["input"]).startswith("[")
            if fault["type"] in _LIST_FAULTS and is_one:
                *parents, last = _keys_of(values, fault["loc"])
                table: Any = values
                for parent in parents:
                    table = table[parent]
                table[last] = [fault["input"]]


def _override(values: dict[str, Any], override: str) -> None:
    """Set a value at the keys that lead to it."""
    key, equals, text = override.partition("=")
    if not equals or not key:
        raise ConfigError(f"expected an override key=value, found {override!r}")
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        value = text  # a bare word is a string: out=runs/mine
    *parents, last = key.split(".")
    for parent in parents:
        values = values.setdefault(parent, {})
        if not isinstance(values, dict):
            raise ConfigError(f"override {override!r}: {parent} is a value, not a table")
    values[last] = value
