"""The descriptors of a zygote, tried in a process of its own."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from sandbox.jail.launcher import CHANNEL

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("number", [CHANNEL, 9])
def test_nothing_of_the_zygotes_lies_where_its_calls_have_their_channel(number: int):
    program = f"""
import json, os, socket
from sandbox.jail import launcher
os.dup2(os.open("/dev/null", os.O_RDWR), 0)
control = launcher.keep_channel_free({number})
print(json.dumps([control, socket.socket(fileno=control).type, os.fstat({CHANNEL}).st_rdev == os.fstat(0).st_rdev]))
"""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    os.dup2(theirs.fileno(), 200)
    command = f'exec {number}<&200 200<&-; exec {sys.executable} -S -c "$0"'
    program = f"import sys; sys.path.insert(0, {str(ROOT)!r})\n{program}"
    result = subprocess.run(
        ["bash", "-c", command, program], pass_fds=(200,), capture_output=True, text=True, timeout=60, check=True
    )
    os.close(200)
    ours.close()
    theirs.close()
    control, kind, is_null = json.loads(result.stdout)
    assert control != CHANNEL
    assert kind == socket.SOCK_SEQPACKET
    assert is_null
