"""Set before anything imports JAX: eight CPU devices, so that every mesh can be tested on one machine."""

import os

os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=8".strip()
os.environ.setdefault("JAX_PLATFORMS", "cpu")
# Threads that spin while they wait starve their neighbours on a small machine.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
