"""The promises to callers, each with a name; any provider of the interface can be checked against them.

promise   A promise: calls, and the outcome that the last of them must have.
promises  All promises, and the list of those that a service must keep before it starts.
answers   Promises about replies: their writer, results, sources, and the state that travels with a call.
bounds    Promises about time, memory, processes and output: no tool takes more than its share.
walls     Promises about files, the network, secrets, and traces of one call in the next.

`python -m sandbox.contract http://127.0.0.1:8377` checks each of them by calls over HTTP and prints a line for each.
"""
