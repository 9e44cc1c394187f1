"""The quickstart replaces its own earlier run and nothing else."""

import pytest

from astra_jax.cli import quickstart
from astra_jax.cli.quickstart import QuickstartFailed, _make_room, export_and_compare
from astra_jax.policy import save_policy


def test_an_earlier_quickstart_is_replaced(tmp_path):
    out = tmp_path / "run"
    _make_room(out)
    (out / "summary.json").write_text("{}")
    _make_room(out)
    assert not (out / "summary.json").exists()


def test_an_empty_folder_is_used_as_it_is(tmp_path):
    _make_room(tmp_path)


def test_a_folder_with_other_files_is_left_alone(tmp_path):
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(QuickstartFailed, match=r"found other files in .*; name another with --out"):
        _make_room(tmp_path)
    assert (tmp_path / "thesis.tex").read_text() == "years of work"


@pytest.mark.parametrize("has_torch", [True, False])
def test_an_export_is_compared_with_torch_where_it_is_installed(tmp_path, untrained, monkeypatch, capsys, has_torch):
    if has_torch:
        pytest.importorskip("torch", reason="what transformers computes with is an extra: pip install '.[parity]'")
    else:
        monkeypatch.setattr(quickstart, "is_installed", lambda module: False)
    save_policy(untrained, tmp_path / "policy")
    figures = export_and_compare(tmp_path / "policy", tmp_path / "hf")
    assert figures["bit_equal"]
    if has_torch:
        assert figures["max_abs_logit_difference"] < 1e-4
        assert "not_compared_because" not in figures
    else:
        assert figures["max_abs_logit_difference"] is None
        assert figures["not_compared_because"].startswith("torch is not installed")
        assert "logits are not compared with transformers" in capsys.readouterr().err
