"""Carries the `hapax` binary; `binary()` tells where it was installed."""

from __future__ import annotations

import sys
import sysconfig
from pathlib import Path

__all__ = ["binary"]


def binary() -> Path:
    """The path of the `hapax` that this package brought; FileNotFoundError where it is missing."""
    name = "hapax" + (".exe" if sys.platform == "win32" else "")
    user_scheme = sysconfig.get_preferred_scheme("user") if sys.version_info >= (3, 10) else "posix_user"
    folders = [
        sysconfig.get_path("scripts"),
        sysconfig.get_path("scripts", scheme=user_scheme),
        # `pip install --target FOLDER` puts programs into FOLDER/bin.
        str(Path(__file__).resolve().parent.parent / "bin"),
    ]
    for folder in folders:
        path = Path(folder) / name
        if path.is_file():
            return path
    raise FileNotFoundError(f"no {name} in {', '.join(folders)}; reinstall hapax-server")
