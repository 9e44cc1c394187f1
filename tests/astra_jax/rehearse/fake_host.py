"""A host of a run without JAX: `fake_host BUCKET FAULT … out=gs://bucket/NAME`. Its loss follows from all steps before.

FAULT is `none`, `forgets` (a resumed run begins with another state), `skips` (with other data), `deaf` (it hears no
SIGTERM), or `waits` (it does not notice that another host is gone).
"""

from __future__ import annotations

import fcntl
import json
import os
import signal
import sys
import time
from pathlib import Path

STEPS = 6


def is_gone(held: Path) -> bool:
    """Say whether the host that holds this lock has ended."""
    with held.open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
    return True


def main() -> None:
    bucket, fault, name = Path(sys.argv[1]), sys.argv[2], sys.argv[-1].rpartition("/")[2]
    host, hosts = int(os.environ["JAX_PROCESS_ID"]), int(os.environ["JAX_NUM_PROCESSES"])
    attempt = bucket / f"{name}_{os.environ['JAX_COORDINATOR_ADDRESS'].rpartition(':')[2]}"
    attempt.mkdir(parents=True, exist_ok=True)
    asked, ended = attempt.with_suffix(".asked"), attempt.with_suffix(".ended")  # by a signal at any host
    signal.signal(signal.SIGTERM, signal.SIG_IGN if fault == "deaf" else lambda *_: asked.touch())
    own = (attempt / str(host)).open("w")
    fcntl.flock(own, fcntl.LOCK_EX)
    (attempt / f"{host}.ready").touch()
    while len(list(attempt.glob("*.ready"))) < hosts:
        time.sleep(0.01)
    saved = bucket / f"{name}.jsonl"
    lines = [json.loads(line) for line in saved.read_text().splitlines()] if saved.exists() else []
    metrics = Path(os.environ["ASTRA_STAGE"], "gs", "bucket", name, "metrics.jsonl")
    metrics.parent.mkdir(parents=True, exist_ok=True)
    state = sum(line["loss"] for line in lines) + 0.5 * (fault == "forgets" and bool(lines))
    shift = int(fault == "skips" and bool(lines))
    for step in range(len(lines), STEPS):
        lines.append({"step": step, "loss": 1 + state / 7, "grad_norm": 1.0, "tokens": 100 + step + shift})
        lines[-1]["seconds"] = 0.3
        state += lines[-1]["loss"]
        text = "".join(json.dumps(line) + "\n" for line in lines)
        metrics.write_text(text)
        if host == 0:
            saved.write_text(text)
        until = time.monotonic() + 0.3
        while time.monotonic() < until:
            others = [attempt / str(other) for other in range(hosts) if other != host]
            if any(map(is_gone, others)) and not (asked.exists() or ended.exists() or fault == "waits"):
                print("astra: HostFailed: one of the hosts is gone")
                sys.exit(1)
            time.sleep(0.02)
        if asked.exists():
            print(f"fake: saved after step {step + 1} on SIGTERM; resumed, it goes on from there", flush=True)
            return
    ended.touch()


if __name__ == "__main__":
    main()
