"""Configs: a TOML file and `key=value` overrides, read into the pydantic class beside the code that it configures."""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

ConfigT = TypeVar("ConfigT", bound=BaseModel)

CONFIGS = Path(__file__).with_name("configs").resolve()
"""The configs that are shipped: `configs/` of a checkout, to which a link leads, and part of the package elsewhere."""


class ConfigError(ValueError):
    """A config cannot be used; the message names the key, what was expected, what was found, and the file."""


def load_config(config_type: type[ConfigT], path: Path, overrides: Sequence[str] = ()) -> ConfigT:
    """Read a config; overrides name nested keys with dots (`optimizer.learning_rate=1e-3`), values are TOML.

    Raises:
        ConfigError: no such file, not TOML, an unknown key, or a value of the wrong type.
    """
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (FileNotFoundError, IsADirectoryError) as error:
        shipped = CONFIGS / Path(path).name
        lies = f"one of that name is shipped: {shipped}" if shipped.is_file() else f"examples are shipped in {CONFIGS}"
        raise ConfigError(f"expected a TOML config, found no file at {path}; {lies}") from error
    try:
        values = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path} is not TOML: {error}") from error
    for override in overrides:
        _override(values, override)
    return parse_config(config_type, values, where=str(path))


def parse_config(config_type: type[ConfigT], values: dict[str, Any], *, where: str) -> ConfigT:
    """Validate the values of a config.

    Raises:
        ConfigError: the first value at fault, with its full path.
    """
    try:
        return config_type.model_validate(values)
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(str(part) for part in first["loc"]) or "the config"
        if first["type"] == "extra_forbidden":
            known = ", ".join(sorted(config_type.model_fields))
            raise ConfigError(f"{where}: unknown key {key}; expected one of {known}") from error
        raise ConfigError(f"{where}: {key}: {first['msg']}, found {first['input']!r}") from error


def _override(values: dict[str, Any], override: str) -> None:
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
