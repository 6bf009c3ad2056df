import { HapaxError, InvalidRequest, NotFound, StoreUnavailable } from "./errors.js"
import { checkedDuration, checkedName, parseAnswer, retryDelay } from "./http.js"
import type { Transport } from "./http.js"
import { pause } from "./runtime.js"
import type { components } from "./schema.js"
import { readFrames } from "./sse.js"
import type { Frame } from "./sse.js"

type PublishEvent = components["schemas"]["PublishEvent"]
type PublishedEvent = components["schemas"]["PublishedEvent"]
type JobStateAnswer = components["schemas"]["JobState"]

export interface PublishOptions {
  /** Whether the event is the job's last one. */
  final?: boolean | undefined
  /** When the event happened, in your own format; now by default. Never compared. */
  timestamp?: string | undefined
  signal?: AbortSignal | undefined
}

/** An event as the log has it. */
export interface JobEvent<T = unknown> {
  kind: "event"
  /** The cursor: pass it as `lastEventId` to continue after this event. */
  id: string
  stage: string
  seq: number
  offset: number
  data: T
  timestamp: string
  final: boolean
}

/** Entries are missing: they were trimmed, the job was forgotten, or a failover lost them. */
export interface JobGap {
  kind: "gap"
  from: number
  /** `null`: the job itself is gone. Below `from`: the log has another history, which continues after `to`. */
  to: number | null
}

/** The job's state after a gap: the event with the highest `seq`. */
export interface JobSnapshot<T = unknown> extends Omit<JobEvent<T>, "kind"> {
  kind: "snapshot"
}

export type Followed<T = unknown> = JobEvent<T> | JobGap | JobSnapshot<T>

export interface FollowOptions {
  /** Continues after this event. */
  lastEventId?: string | undefined
  /** Begins after the entry with the highest `seq` up to this one; late events may come again. */
  lastSeq?: number | undefined
  /** Ends the iteration. */
  signal?: AbortSignal | undefined
  /** A connection without any sign of life for so long is opened again; 45 s by default. */
  idleTimeoutMs?: number | undefined
  /** How long to try while the server is away before the iteration throws; 5 min by default. */
  giveUpAfterMs?: number | undefined
}

export interface JobState<T = unknown> {
  state: Omit<JobEvent<T>, "id" | "kind">
  offset: number
  epoch: number
  closed: boolean
}

export async function publish(transport: Transport, event: PublishEvent, signal?: AbortSignal): Promise<PublishedEvent> {
  checkedName("domain", event.domain)
  checkedName("jobId", event.job_id)
  checkedName("stage", event.stage)
  if (!Number.isSafeInteger(event.seq) || event.seq < 0) {
    throw new InvalidRequest("`seq` must be a whole number from 0 to 9007199254740991")
  }
  if (event.data === undefined) throw new InvalidRequest("`data` must be a JSON value; pass null for none")
  const call = { method: "POST", path: ["events"], body: event, signal }
  return parseAnswer<PublishedEvent>(await transport.call({ ...call, afterLostAnswer: "repeat" }))
}

export async function jobState<T>(transport: Transport, domain: string, jobId: string): Promise<JobState<T> | undefined> {
  const path = ["jobs", checkedName("domain", domain), checkedName("jobId", jobId)]
  try {
    const found = parseAnswer<JobStateAnswer>(await transport.call({ method: "GET", path, afterLostAnswer: "repeat" }))
    const { stage, seq, offset, data, timestamp, final } = found.state as unknown as Omit<JobEvent<T>, "id" | "kind">
    const state = { stage, seq, offset, data, timestamp, final: final === true }
    return { state, offset: found.offset, epoch: found.epoch, closed: found.closed }
  } catch (error) {
    if (error instanceof NotFound) return undefined
    throw error
  }
}

/** Every event of a job, once and in order, over any number of connections; ends with the job. */
export async function* follow<T>(transport: Transport, domain: string, jobId: string, options: FollowOptions): AsyncGenerator<Followed<T>, void, undefined> {
  const path = ["jobs", checkedName("domain", domain), checkedName("jobId", jobId), "events"]
  const idleTimeoutMs = checkedDuration("idleTimeoutMs", options.idleTimeoutMs ?? 45_000, 1, 3_600_000)
  const giveUpAfterMs = checkedDuration("giveUpAfterMs", options.giveUpAfterMs ?? 300_000, 0, Number.MAX_SAFE_INTEGER)
  let lastEventId = options.lastEventId
  let failingSince: number | undefined
  let retryMs = 1_000
  for (let failures = 0; ; ) {
    if (options.signal?.aborted) return
    const idle = new AbortController()
    const abort = () => idle.abort()
    options.signal?.addEventListener("abort", abort, { once: true })
    let timer = setTimeout(abort, idleTimeoutMs)
    let ended = false
    try {
      const query = lastEventId === undefined ? { last_seq: options.lastSeq } : {}
      const headers: Record<string, string> = lastEventId === undefined ? {} : { "last-event-id": lastEventId }
      const response = await transport.open(path, query, headers, idle.signal)
      // 204: the job is closed and everything has been seen.
      if (response.status === 204 || response.body === null) return
      for await (const frame of readFrames(response.body)) {
        clearTimeout(timer)
        timer = setTimeout(abort, idleTimeoutMs)
        failures = 0
        failingSince = undefined
        retryMs = Math.min(frame.retryMs ?? retryMs, 60_000)
        if (frame.data === "") continue
        const followed = followedOf<T>(frame, lastEventId)
        // Before the yield: a consumer that breaks off there has seen the event.
        lastEventId = frame.id ?? lastEventId
        clearTimeout(timer)
        yield followed
        timer = setTimeout(abort, idleTimeoutMs)
      }
      ended = true
    } catch (error) {
      if (options.signal?.aborted) return
      if (error instanceof HapaxError && !error.retryable) throw error
      failingSince ??= performance.now()
      if (performance.now() - failingSince >= giveUpAfterMs) {
        throw new StoreUnavailable("the server could not be reached to follow the job", { code: "unreachable", cause: error })
      }
    } finally {
      clearTimeout(timer)
      options.signal?.removeEventListener("abort", abort)
      idle.abort()
    }
    try {
      // A stream that ended is asked again soon: the answer is 204 if the job is closed.
      await pause(ended && failures === 0 ? 10 : Math.max(retryDelay(failures), failures > 3 ? retryMs : 0), options.signal)
    } catch {
      return
    }
    failures++
  }
}

function followedOf<T>(frame: Frame, lastEventId: string | undefined): Followed<T> {
  let parsed: unknown
  try {
    parsed = JSON.parse(frame.data)
  } catch (cause) {
    throw new InvalidRequest("the stream has an event that is not JSON", { cause })
  }
  if (frame.event === "gap") {
    const { from, to } = parsed as { from: number; to: number | null }
    return { kind: "gap", from, to }
  }
  const { stage, seq, offset, data, timestamp, final } = parsed as Omit<JobEvent<T>, "kind" | "id">
  const kind = frame.event === "snapshot" ? "snapshot" : "event"
  return { kind, id: frame.id ?? lastEventId ?? "", stage, seq, offset, data, timestamp, final: final === true }
}
