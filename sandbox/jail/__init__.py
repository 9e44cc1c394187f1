"""The code inside the jail: the zygote and the harness of one call. It imports only the standard library."""
