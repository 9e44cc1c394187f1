"""A stand-in of Python in inspect's environment: it copies the log, of which nothing is an archive, without what the
real one leaves out."""

import json
import sys
from pathlib import Path

if __name__ == "__main__":
    log = json.loads(Path(sys.argv[3]).read_text())
    for sample in log["samples"]:
        sample["events"] = [event for event in sample["events"] if event["event"] == "model"]
    Path(sys.argv[4]).write_text(json.dumps(log))
