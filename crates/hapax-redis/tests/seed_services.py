"""A service that knows nothing of hapax and uses the same Redis: the lock calls of a LINE bot and the
key-value calls of a bookkeeping bot, as their authors wrote them. Reads a command a line, answers a line.
"""

import json
import sys

import redis

client = redis.Redis.from_url(sys.argv[1], decode_responses=True)


def try_acquire_lock(key, timeout_seconds):
    return client.set(key, "1", ex=timeout_seconds, nx=True) is True


def release_lock(key):
    client.delete(key)


def kv_get(key):
    text = client.get(key)
    return None if text is None else json.loads(text)


def kv_set(key, value, ttl):
    return client.set(key, json.dumps(value, ensure_ascii=False), ex=ttl) is True


for line in sys.stdin:
    command, *arguments = json.loads(line)
    answer = {
        "lock": lambda key, seconds: try_acquire_lock(key, seconds),
        "unlock": lambda key: release_lock(key),
        "get": lambda key: kv_get(key),
        "set": lambda key, value, ttl: kv_set(key, value, ttl),
        "ttl": lambda key: client.ttl(key),
    }[command](*arguments)
    print(json.dumps(answer, ensure_ascii=False), flush=True)
