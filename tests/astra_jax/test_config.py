"""A config that is not there says where the shipped ones lie."""

from __future__ import annotations

import pytest

from astra_jax.config import CONFIGS, ConfigError, load_config
from astra_jax.sft.config import SFTConfig
from tests.test_import_rules import ROOT


def test_the_shipped_configs_are_those_of_the_checkout():
    assert CONFIGS == ROOT / "configs"
    assert (ROOT / "astra_jax" / "configs").is_symlink()


def test_a_missing_config_that_is_shipped_is_named_in_one_line(tmp_path):
    with pytest.raises(ConfigError) as error:
        load_config(SFTConfig, tmp_path / "configs" / "tiny_sft.toml")
    assert str(error.value) == (
        f"expected a TOML config, found no file at {tmp_path}/configs/tiny_sft.toml; "
        f"one of that name is shipped: {CONFIGS}/tiny_sft.toml"
    )
    with pytest.raises(ConfigError, match=f"mine.toml; examples are shipped in {CONFIGS}"):
        load_config(SFTConfig, tmp_path / "mine.toml")
