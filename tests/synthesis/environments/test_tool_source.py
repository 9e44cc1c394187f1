"""The check of a tool's code sees through the modules that it imports."""

from __future__ import annotations

import importlib
from types import ModuleType

import pytest

from synthesis.environments.proving.tool_source import ALLOWED_MODULES, check_source
from synthesis.stage import Rejected
from tests.synthesis.environments.made import document

DOCUMENT = document("look", "Looks", key="string")


def check(*lines, before="", packages=()):
    check_source("\n".join([before, "def look(key):", *(f"    {line}" for line in lines), ""]), DOCUMENT, (), packages)


HIDDEN = sorted(
    (module, name)
    for module in ALLOWED_MODULES
    for name, value in vars(importlib.import_module(module)).items()
    if isinstance(value, ModuleType) and value.__name__.split(".")[0] not in ALLOWED_MODULES
)


def test_no_allowed_module_leads_to_one_that_is_not():
    assert ("enum", "sys") in HIDDEN
    for module, name in HIDDEN:
        with pytest.raises(Rejected, match="not allowed"):
            check(f"return {module}.{name}", before=f"import {module}")
        with pytest.raises(Rejected, match="not allowed"):
            check(f"return m.{name}.anything['x']", before=f"import {module} as m")
        with pytest.raises(Rejected, match="not allowed"):
            check(f"from {module} import {name} as harmless", "return harmless")


@pytest.mark.parametrize(
    ("before", "line"),
    [
        ("import enum", "return enum.sys.modules['os'].getcwd()"),
        ("import enum", "return enum.bltns.open('x')"),
        ("import re", "return re.enum.sys.modules"),
        ("import json", "return json.decoder.scanner.re.enum.sys.modules"),
        ("import json.decoder", "return json.codecs.open('x')"),
        ("import collections", "return collections._sys.modules"),
        ("from collections import _sys", "return _sys.modules"),
        ("from re import _compiler", "return _compiler"),
        ("from statistics import random", "return random.random()"),
        ("from typing import sys as harmless", "return harmless.modules"),
        ("import enum", "e = enum; return e.sys.modules"),
        ("import re", "e = re.enum; return e.sys.modules"),
        ("from re import enum", "return [enum][0].sys.modules"),
        ("import enum", "return (lambda m: m.sys)(enum)"),
        ("import enum", "return (lambda m=enum: m.sys)()"),
        ("import enum", "return [m.sys for m in (enum,)]"),
        ("import enum", "return [enum.sys for key in 'x']"),
        ("import enum", "def inner(enum): pass\n    x = enum\n    return x"),
        ("", "import enum\n    if 0: enum = 1\n    x = enum\n    return x"),
        ("import enum, functools", "return functools.reduce(object.__getattribute__, ['sys'], enum)"),
        ("import enum, operator", "return operator.attrgetter('sys')(enum)"),
        ("import operator", "return operator.attrgetter('__globals__')(look)"),
        ("from operator import methodcaller as m", "return m('__subclasses__')(object)"),
        ("import string", "return string.Formatter().get_field('0.__globals__', [look], {})"),
        ("import typing", "return typing.get_type_hints(look)"),
        ("from typing import *", "return get_type_hints(look)"),
        ("import enum", "match enum:\n        case object(sys=s): return s.modules"),
        ("", "match look:\n        case object(__globals__=g): return g"),
        ("", "return __builtins__['open']"),
        ("", "return __loader__.load_module('os')"),
        ("", "g = (g.gi_frame.f_back.f_builtins for _ in 'x'); return next(g)"),
        ("import json.__main__", "return 1"),
        ("import collections.nowhere", "return 1"),
    ],
)
def test_a_way_to_another_module_is_not_allowed(before, line):
    with pytest.raises(Rejected, match="not allowed"):
        check(*line.split("; "), before=before)


@pytest.mark.parametrize(
    ("before", "line"),
    [
        ("import re, json, math, enum", "return json.dumps([math.pi, re.sub('a', 'b', key)])"),
        ("import collections.abc", "return isinstance(key, collections.abc.Mapping)"),
        ("from collections import abc, Counter", "return isinstance(key, abc.Mapping) or Counter(key)"),
        ("from typing import *", "x: Optional[Dict[str, Any]] = None; return x"),
        ("import json", "return json.decoder.JSONDecodeError"),
        ("from json import decoder", "return decoder.JSONDecodeError"),
        ("import operator", "return max(key, key=operator.itemgetter(0))"),
        ("import statistics, numbers", "statistics = {'mean': 1}; return statistics"),
        ("import operator", "def apply(operator): return operator\n    return apply(key)"),
        ("import copy", "return [copy for copy in key]"),
        ("import copy", "try: x = 1\n    except ValueError as copy: return str(copy)\n    return 2"),
        ("from dataclasses import dataclass, field\n@dataclass\nclass Phone:\n    os: str", "return Phone(key).os"),
        ("from enum import Enum\nclass Kind(Enum):\n    sys = 1", "return Kind.sys.name"),
        ("import datetime as dt" if "datetime" in ALLOWED_MODULES else "", "return __name__ == '__main__'"),
        ("", "try: return row.sys.modules\n    except NameError: return None"),
    ],
)
def test_honest_code_passes(before, line):
    check(*line.split("; "), before=before)


def test_code_that_nests_too_deep_is_rejected():
    with pytest.raises(Rejected, match="code does not parse: nests deeper than"):
        check("return " + "-" * 100_000 + "1")
