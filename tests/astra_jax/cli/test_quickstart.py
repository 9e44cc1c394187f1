"""The quickstart replaces its own earlier run and nothing else."""

import pytest

from astra_jax.cli.quickstart import QuickstartFailed, _make_room


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
