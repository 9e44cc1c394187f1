"""Runs Python that nobody has read: a service that answers every call with a typed reply and survives every tool."""
