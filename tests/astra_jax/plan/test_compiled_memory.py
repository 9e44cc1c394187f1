"""Answers of a compiler that stands in for the real one."""

import jax
import pytest

from astra_jax.plan.compiled_memory import CompiledMemory, compiled_memory
from astra_jax.user_cache import user_cache

GIB = 2**30
HERE = {"topology": "v5e:2x2", "compiler": "1"}


class Analysis:
    peak_memory_in_bytes = 7 * GIB
    argument_size_in_bytes = 2 * GIB
    output_size_in_bytes = 2 * GIB
    alias_size_in_bytes = 2 * GIB
    temp_size_in_bytes = 3 * GIB
    generated_code_size_in_bytes = GIB
    host_temp_size_in_bytes = 0


class Program:
    """A lowered program that counts how often it is compiled."""

    def __init__(self, text="module", analysis=Analysis, refusal=None):
        self.text, self.analysis, self.refusal, self.compiled = text, analysis, refusal, 0

    def as_text(self):
        return self.text

    def compile(self):
        self.compiled += 1
        if self.refusal is not None:
            raise jax.errors.JaxRuntimeError(self.refusal)
        return self

    def memory_analysis(self):
        return self.analysis()


@pytest.fixture(autouse=True)
def _own_cache(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


def test_the_same_program_for_the_same_chips_is_compiled_once():
    first, again = Program(), Program()
    assert compiled_memory(first, **HERE)[1] is False
    memory, from_cache = compiled_memory(again, **HERE)
    assert (memory, from_cache) == (CompiledMemory(peak_bytes=7 * GIB, host_bytes=0), True)
    assert (first.compiled, again.compiled) == (1, 0)


@pytest.mark.parametrize(
    ("text", "topology", "compiler", "flags"),
    [
        ("another", "v5e:2x2", "1", ""),
        ("module", "v5e:4x4", "1", ""),
        ("module", "v5e:2x2", "2", ""),
        ("module", "v5e:2x2", "1", "--xla_x"),
    ],
)
def test_another_program_topology_compiler_or_flag_is_compiled_again(monkeypatch, text, topology, compiler, flags):
    monkeypatch.setenv("LIBTPU_INIT_ARGS", "")
    compiled_memory(Program(), **HERE)
    monkeypatch.setenv("LIBTPU_INIT_ARGS", flags)
    assert compiled_memory(Program(text), topology=topology, compiler=compiler)[1] is False


def test_host_memory_is_never_counted_as_the_chips():
    class Offloading(Analysis):
        host_temp_size_in_bytes = 20 * GIB
        peak_memory_in_bytes = 22 * GIB

    memory, _ = compiled_memory(Program(analysis=Offloading), **HERE)
    assert memory == CompiledMemory(peak_bytes=6 * GIB, host_bytes=20 * GIB)


def test_a_program_that_is_refused_for_want_of_memory_has_the_peak_that_the_refusal_names():
    refusal = (
        "RESOURCE_EXHAUSTED: E1000: CompileTimeHbmOom: Ran out of memory on HBM, the total memory required for HLO "
        "temporaries (20.50G) exceeds available HBM (15.75G). HLO module: jit_rl_step.\nSee https://openxla.org"
    )
    memory, _ = compiled_memory(Program(refusal=refusal), **HERE)
    assert memory.peak_bytes == 20.5 * GIB


def test_any_other_refusal_is_an_error_and_leaves_no_answer():
    with pytest.raises(jax.errors.JaxRuntimeError, match="Bitcast"):
        compiled_memory(Program(refusal="INTERNAL: Bitcast"), **HERE)
    assert not (user_cache() / "plan").exists()
