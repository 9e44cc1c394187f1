"""The script of `astra completion bash`, run by a real shell, completes commands, options and choices."""

from __future__ import annotations

import shutil
import subprocess

import pytest

from astra_jax.cli.command import main


def completed(script: str, *words: str) -> set[str]:
    """Return what bash offers for the last word."""
    line = " ".join(words)
    asked = (
        f"{script}\nCOMP_WORDS=({' '.join(repr(word) for word in words)}); COMP_CWORD={len(words) - 1}\n"
        f"COMP_LINE={line!r}; COMP_POINT={len(line)}\n"
        '$(complete -p astra | sed "s/.*-F \\([^ ]*\\).*/\\1/") astra; printf "%s\\n" "${COMPREPLY[@]}"\n'
    )
    done = subprocess.run(["bash", "-c", asked], capture_output=True, text=True, timeout=60, check=True)
    return {word.strip() for word in done.stdout.split()}


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
def test_bash_completes_commands_options_and_choices(capsys):
    assert main(["completion", "bash"]) == 0
    script = capsys.readouterr().out
    assert {"quickstart", "synthesize"} <= completed(script, "astra", "")
    assert completed(script, "astra", "synth") == {"synthesize"}
    assert {"trajectories", "environments"} <= completed(script, "astra", "synthesize", "")
    assert "--topology" in completed(script, "astra", "launch", "--t")
    assert completed(script, "astra", "launch", "--on", "g") == {"gke"}


@pytest.mark.parametrize("shell", ["zsh", "tcsh"])
def test_other_shells_have_a_script_too(capsys, shell):
    assert main(["completion", shell]) == 0
    assert "astra" in capsys.readouterr().out
