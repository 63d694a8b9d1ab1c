"""The commands `sheaf` and `sheaf-run` of an environment: they become the tools that the package contains."""
from __future__ import annotations

import os
import sys
from typing import NoReturn

from ._tools import Error, tool


def _become(name: str) -> NoReturn:
    try:
        path = str(tool(name))
    except Error as error:
        sys.exit(f"{name}: error: {error}")
    os.execv(path, [name, *sys.argv[1:]])


def sheaf() -> NoReturn:
    _become("sheaf")


def sheaf_run() -> NoReturn:
    _become("sheaf-run")
