"""One of the hosts of a job, which waits for the others as in a computation of TPUs, which never ends.

`run_waiting_host SECONDS` waits that long, and says for how long it has not run.
"""

import sys
import time

from astra_jax.mesh import hosts, watch

if __name__ == "__main__":
    watch._GONE_SECONDS, watch._LOOK_SECONDS = 4.0, 0.5
    hosts.join_hosts()
    with hosts.ending_with_other_hosts():
        print("joined", flush=True)
        until = time.monotonic() + float(sys.argv[1])
        while time.monotonic() < until:
            time.sleep(0.1)
        print(f"stood still for {hosts.stood_still_seconds():.1f} s", flush=True)
