"""Rehearsal of a pod on this machine: its config, its hosts as processes, a bucket, and all that may happen to them.

rehearsal  The life of a pod, rehearsed on this machine: each hardship of a job of N hosts is a row of a table.
bucket     A bucket on loopback: the package gcp-storage-emulator behind a door that can fail as a real one does.
job        The hosts of one job as processes of this machine, each with fake devices; they find each other over
           loopback.
small      The config of a pod made small: a tiny model of the same family, tiny records, a mesh of few devices.
"""
