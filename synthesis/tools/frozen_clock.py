"""Run a Python MCP server whose own clock stands still.

    python -m synthesis.tools.frozen_clock TIME MODULE [ARG…]

A server that reads the clock would make records depend on the day they were made. The server runs unchanged; only the
name `datetime` in its package's modules is a class whose `now()` is the given time (ISO 8601 with offset).
"""

from __future__ import annotations

import datetime
import importlib
import pkgutil
import sys


def frozen_datetime(moment: datetime.datetime) -> type[datetime.datetime]:
    """Return a `datetime` class whose `now` is `moment`.

    >>> moment = datetime.datetime.fromisoformat("2026-03-02T09:00:00+00:00")
    >>> frozen_datetime(moment).now(datetime.timezone(datetime.timedelta(hours=1))).isoformat()
    '2026-03-02T10:00:00+01:00'
    """

    class FrozenDatetime(datetime.datetime):
        @classmethod
        def now(cls, tz: datetime.tzinfo | None = None) -> FrozenDatetime:
            # Without a zone, `now()` is the time on the wall: that of the moment's own offset.
            local = moment.astimezone(tz) if tz is not None else moment.replace(tzinfo=None)
            return cls.combine(local.date(), local.timetz())

    return FrozenDatetime


def freeze_package(package_name: str, moment: datetime.datetime) -> None:
    """Put the standing clock into every module of a package that imports `datetime` by name."""
    package = importlib.import_module(package_name)
    for module in pkgutil.iter_modules(getattr(package, "__path__", ())):
        if module.name != "__main__":  # importing that would run the server
            importlib.import_module(f"{package_name}.{module.name}")
    for name, loaded in list(sys.modules.items()):
        is_inside = name == package_name or name.startswith(f"{package_name}.")
        if is_inside and getattr(loaded, "datetime", None) is datetime.datetime:
            loaded.datetime = frozen_datetime(moment)  # type: ignore[attr-defined]


def main() -> None:
    """Freeze the package and hand over to its `main`.

    Raises:
        SystemExit: the command line names no time or no module.
    """
    if len(sys.argv) < 3:
        raise SystemExit("expected: python -m synthesis.tools.frozen_clock TIME MODULE [ARG…]")
    moment, package_name = datetime.datetime.fromisoformat(sys.argv[1]), sys.argv[2]
    freeze_package(package_name, moment)
    sys.argv = [package_name, *sys.argv[3:]]
    sys.modules[package_name].main()


if __name__ == "__main__":
    main()
