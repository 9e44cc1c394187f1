"""One of the hosts of a job, which waits for the others as in a computation of TPUs, which never ends."""

import time

from astra_jax.mesh.hosts import ending_with_other_hosts, join_hosts

if __name__ == "__main__":
    join_hosts()
    with ending_with_other_hosts():
        print("joined", flush=True)
        time.sleep(600)
