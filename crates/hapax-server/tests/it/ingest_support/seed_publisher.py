IDEMPOTENT_XADD = """
local stream_key = KEYS[1]
local state_key = KEYS[2]
local publish_key = KEYS[3]
local event_data = ARGV[1]
local state_ttl = tonumber(ARGV[2])
local publish_ttl = tonumber(ARGV[3])

if redis.call('EXISTS', publish_key) == 1 then
    return 0
end

redis.call('XADD', stream_key, 'MAXLEN', '~', '10000', '*', 'data', event_data)
redis.call('SETEX', state_key, state_ttl, event_data)
redis.call('SETEX', publish_key, publish_ttl, '1')

return 1
"""

async def publish_event(
    redis: Redis,
    domain: str,
    job_id: str,
    stage: str,
    seq: int,
    data: dict,
) -> bool:
    """멱등성 보장 이벤트 발행"""
    shard = md5_hash(job_id) % SHARD_COUNT

    event = {
        "job_id": job_id,
        "domain": domain,
        "stage": stage,
        "seq": seq,
        "data": data,
        "timestamp": datetime.utcnow().isoformat(),
    }

    result = await redis.eval(
        IDEMPOTENT_XADD,
        3,  # key count
        f"{domain}:events:{shard}",      # stream
        f"{domain}:state:{job_id}",      # state
        f"published:{job_id}:{stage}:{seq}",  # dedup key
        json.dumps(event),
        3600,   # state TTL
        7200,   # publish TTL
    )

    return result == 1


# Stage별 seq 범위 (Eco² 컨벤션)
SEQ_RANGES = {
    "vision": (10, 19),      # 10, 11, 12...
    "rule": (20, 29),        # 20, 21, 22...
    "answer": (30, 39),      # 30, 31, 32...
    "reward": (40, 49),      # 40, 41, 42...
    "done": (50, 59),        # 51 (final)
}

def get_next_seq(stage: str, sub_seq: int = 0) -> int:
    """Stage별 seq 계산"""
    base, _ = SEQ_RANGES.get(stage, (0, 9))
    return base + sub_seq


@pytest.mark.asyncio
async def test_idempotent_publish():
    """동일 이벤트 중복 발행 테스트"""
    redis = await get_redis()

    # 첫 번째 발행 - 성공
    result1 = await publish_event(
        redis, "scan", "job-1", "vision", 10, {"status": "done"}
    )
    assert result1 is True

    # 두 번째 발행 - 스킵
    result2 = await publish_event(
        redis, "scan", "job-1", "vision", 10, {"status": "done"}
    )
    assert result2 is False

    # Stream에 1개만 존재
    messages = await redis.xrange("scan:events:0")
    job1_events = [m for m in messages if b"job-1" in m[1][b"data"]]
    assert len(job1_events) == 1
