"""One of the hosts of a job, which waits for the others as in a computation of TPUs, which never ends."""

import time

from astra_jax.mesh import hosts

if __name__ == "__main__":
    hosts._HEARTBEAT_SECONDS = 2
    hosts.join_hosts()
    with hosts.ending_with_other_hosts():
        print("joined", flush=True)
        time.sleep(600)
