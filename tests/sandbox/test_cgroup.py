"""Limits over a worker, against a directory that stands for the kernel's cgroup file system."""

from pathlib import Path

import pytest

from sandbox.cgroup import confine, dissolve


@pytest.fixture
def tree(tmp_path: Path) -> tuple[Path, Path]:
    (tmp_path / "fs" / "service").mkdir(parents=True)
    (tmp_path / "own").write_text("12:pids:/x\n0::/service\n")
    (tmp_path / "fs" / "service" / "cgroup.controllers").write_text("cpu memory pids\n")
    return tmp_path / "fs", tmp_path / "own"


def test_a_worker_gets_a_cgroup_with_its_limits(tree: tuple[Path, Path]) -> None:
    group = confine(77, 1 << 30, 200, *tree)
    assert group == tree[0] / "service" / "sandbox-77"
    assert (tree[0] / "service" / "cgroup.subtree_control").read_text() == "+memory +pids"
    found = {name: (group / name).read_text() for name in ("memory.max", "pids.max", "cgroup.procs")}
    assert found == {"memory.max": str(1 << 30), "pids.max": "200", "cgroup.procs": "77"}


def test_without_the_controllers_there_is_none(tree: tuple[Path, Path]) -> None:
    (tree[0] / "service" / "cgroup.controllers").write_text("hugetlb\n")
    assert confine(77, 1 << 30, 200, *tree) is None
    assert not (tree[0] / "service" / "sandbox-77").exists()


def test_without_cgroup_v2_there_is_none(tree: tuple[Path, Path]) -> None:
    tree[1].write_text("12:pids:/x\n")
    assert confine(77, 1 << 30, 200, *tree) is None


def test_a_cgroup_that_cannot_be_written_is_none_and_leaves_nothing(tree: tuple[Path, Path]) -> None:
    (tree[0] / "service" / "cgroup.subtree_control").mkdir()
    assert confine(77, 1 << 30, 200, *tree) is None
    assert not (tree[0] / "service" / "sandbox-77").exists()


def test_a_cgroup_goes_with_its_worker(tmp_path: Path) -> None:
    (tmp_path / "sandbox-1").mkdir()
    dissolve(tmp_path / "sandbox-1")
    dissolve(tmp_path / "sandbox-1")
    assert not (tmp_path / "sandbox-1").exists()
