from __future__ import annotations

import re
from functools import lru_cache


@lru_cache(maxsize=64)
def pyformat(sql: str) -> str:
    """``:name`` as ``%(name)s``, for psycopg and Django. (No statement has a ``%`` of its own.)"""
    return re.sub(r":(\w+)", r"%(\1)s", sql)
