"""What callers may rely on, as named promises that any provider of the interface can be held to.

`python -m sandbox.contract http://127.0.0.1:8377` checks each of them by calls over HTTP and prints a line for each.
"""
