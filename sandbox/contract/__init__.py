"""The promises to callers, each with a name; any provider of the interface can be checked against them.

`python -m sandbox.contract http://127.0.0.1:8377` checks each of them by calls over HTTP and prints a line for each.
"""
