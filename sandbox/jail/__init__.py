"""What runs inside the jail: the zygote and the harness of one call. Standard library only, nothing of ours outside."""
