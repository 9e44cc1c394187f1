"""Hosts and devices: who takes part, and where arrays lie."""
