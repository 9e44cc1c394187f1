"""`python -m astra_jax.cli` is the `astra` command."""

import sys

from astra_jax.cli import main

sys.exit(main())
