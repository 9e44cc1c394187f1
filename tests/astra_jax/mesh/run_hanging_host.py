"""One of the hosts of a job; the second one stops before its third program and lives on, and the other waits for it."""

import time

import jax
import numpy as np

from astra_jax.mesh import hosts

if __name__ == "__main__":
    hosts.join_hosts()
    with hosts.ending_with_other_hosts():
        for step in range(5):
            if jax.process_index() == 1 and step == 2:
                time.sleep(600)
            hosts.hosts_are_to_end()
            hosts.gather_from_hosts(np.array(step))
