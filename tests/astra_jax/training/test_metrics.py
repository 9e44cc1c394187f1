"""The metrics of a run have one line per step, however often the run was interrupted."""

from __future__ import annotations

import struct

from hypothesis import given, settings
from hypothesis import strategies as st
from tensorboardX.proto.event_pb2 import Event

from astra_jax.metrics_file import read_metrics
from astra_jax.training.metrics import MetricsLog, Progress


def write_steps(path, first, stop, value):
    with MetricsLog(path, first_step=first) as log:
        for step in range(first, stop):
            log.write(step, {"loss": value})


def test_every_line_is_readable_as_soon_as_its_step_is_done(tmp_path):
    path = tmp_path / "run" / "metrics.jsonl"
    assert read_metrics(path) == []
    with MetricsLog(path, first_step=0) as log:
        for step in range(3):
            log.write(step, {"loss": 0.1})
            assert read_metrics(path) == [{"step": done, "loss": 0.1} for done in range(step + 1)]


@settings(max_examples=50, deadline=None, derandomize=True)
@given(
    interruptions=st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6), st.integers(0, 25)), max_size=4),
)
def test_interrupted_runs_leave_neither_gaps_nor_repeats(tmp_path_factory, interruptions):
    """Each interruption: resumed from some earlier step, ran on, and was cut in the middle of a line."""
    path = tmp_path_factory.mktemp("run") / "metrics.jsonl"
    reached = 0
    for back, ahead, cut_bytes in interruptions:
        first = max(0, reached - back)
        write_steps(path, first, first + ahead, 0.5)
        text = path.read_text()
        path.write_text(text[: max(0, len(text) - cut_bytes)])
        reached = len(read_metrics(path))
    write_steps(path, reached, 12 + reached, 0.5)
    assert [line["step"] for line in read_metrics(path)] == list(range(12 + reached))


def test_every_metric_is_a_tensorboard_scalar(tmp_path):
    """Read back record by record: length, checksum, event, checksum."""
    with MetricsLog(tmp_path / "metrics.jsonl", first_step=0) as log:
        log.write(0, {"loss": 0.5, "grad_norm": 2.0})
        log.write(1, {"loss": 0.25, "grad_norm": 1.0})
    (path,) = (tmp_path / "tensorboard").iterdir()
    data, found = path.read_bytes(), []
    while data:
        (length,) = struct.unpack("<Q", data[:8])
        event = Event.FromString(data[12 : 12 + length])
        found += [(value.tag, event.step, value.simple_value) for value in event.summary.value]
        data = data[16 + length :]
    assert found == [("loss", 0, 0.5), ("grad_norm", 0, 2.0), ("loss", 1, 0.25), ("grad_norm", 1, 1.0)]


def test_progress_lines_say_when_the_run_will_end_by_its_steps_after_the_first(capsys):
    seconds = iter([100.0, 102.0, 104.0, 106.0])  # the first step took a hundred, the others two each
    progress = Progress("sft", 5, ("loss",), clock=lambda: next(seconds))
    for step in range(1, 5):  # a run that was resumed after its first step
        progress.report(step, {"loss": 0.5})
    assert capsys.readouterr().err.splitlines() == [
        "sft: step 2/5  loss 0.5",
        "sft: step 3/5  loss 0.5  ETA 0:00:04",
        "sft: step 4/5  loss 0.5  ETA 0:00:02",
        "sft: step 5/5  loss 0.5",
    ]


def test_a_progress_line_keeps_the_newest_value_of_a_figure_that_a_step_lacks(capsys):
    """So a line names every kind of row, and never one kind's loss in the place of another's."""
    progress = Progress("sft", 3, ("loss_a", "loss_b", "loss_c"), clock=lambda: 0.0)
    for step, losses in enumerate([{"loss_b": 2.7}, {"loss_a": 0.07}, {"loss_b": 2.5}]):
        progress.report(step, losses)
    assert [line.split("  ")[1:] for line in capsys.readouterr().err.replace("  ETA 0:00:00", "").splitlines()] == [
        ["loss_b 2.7"],
        ["loss_a 0.07", "loss_b 2.7"],
        ["loss_a 0.07", "loss_b 2.5"],
    ]
