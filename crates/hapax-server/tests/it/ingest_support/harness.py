"""Runs the workers' own publisher, which is `seed_publisher.py` as it was found, word for word.

Only what it leaves undefined is supplied here: its imports, the hash, the number of shards, and the
connection.

    harness.py URL test                         its own test
    harness.py URL publish JOBS SHARDS PAUSE    every event of some jobs, each of them twice
"""

import asyncio
import hashlib
import json
import pathlib
import sys
import types
from datetime import datetime

from redis.asyncio import Redis

url, action, *arguments = sys.argv[1:]


def md5_hash(text):
    return int(hashlib.md5(text.encode()).hexdigest(), 16)


async def get_redis():
    return Redis.from_url(url)


same = lambda function: function
world = {
    "json": json,
    "datetime": datetime,
    "Redis": Redis,
    "pytest": types.SimpleNamespace(mark=types.SimpleNamespace(asyncio=same)),
    "md5_hash": md5_hash,
    "get_redis": get_redis,
    "SHARD_COUNT": 1,
}
source = pathlib.Path(__file__).with_name("seed_publisher.py")
exec(compile(source.read_text(), str(source), "exec"), world)


async def publish(jobs, shards, pause):
    world["SHARD_COUNT"] = shards
    redis = await get_redis()
    stages = [
        (stage, world["get_next_seq"](stage, nth))
        for stage in ("vision", "rule", "answer", "reward")
        for nth in range(3)
    ]
    stages.append(("done", 51))
    for stage, seq in stages:
        for job in range(jobs):
            event = (redis, "scan", f"job-{job}", stage, seq, {"job": job, "seq": seq})
            first = await world["publish_event"](*event)
            again = await world["publish_event"](*event)
            assert first and not again, (stage, seq, job)
        await asyncio.sleep(pause)
    await redis.aclose()


if action == "test":
    asyncio.run(world["test_idempotent_publish"]())
else:
    jobs, shards, pause = arguments
    asyncio.run(publish(int(jobs), int(shards), float(pause)))
print("done")
