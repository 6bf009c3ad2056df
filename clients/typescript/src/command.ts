import { Claim } from "./claim.js"
import type { Granted, Run } from "./claim.js"
import { Busy, InvalidRequest } from "./errors.js"
import { checkedDuration, checkedName, jsonOf, parseAnswer } from "./http.js"
import type { Transport } from "./http.js"
import { canonicalJson, fingerprintOf, fromBase64, textOf, toBase64, utf8 } from "./runtime.js"
import type { components } from "./schema.js"

type BeginCommand = components["schemas"]["BeginCommand"]
type BegunCommand = components["schemas"]["BegunCommand"]
type CompleteCommand = components["schemas"]["CompleteCommand"]
type CompletedCommand = components["schemas"]["CompletedCommand"]

export interface BeginOptions {
  /** A text that is the same for the same request; another one under the same key is `KeyReused`. */
  fingerprint?: string | undefined
  /** How long a run is believed alive without renewal; 30 s by default. */
  leaseMs?: number | undefined
  /** For how long the lease is renewed in the background; an hour by default. */
  renewForMs?: number | undefined
  /** How long the answer is kept; 24 h by default. */
  retentionMs?: number | undefined
  /** How long to wait for the answer of another attempt; 10 s by default. */
  waitMs?: number | undefined
  /** The policy for an earlier attempt that may or may not have acted; `refuse` by default. */
  onUnknown?: "refuse" | "rerun" | undefined
  /** For how long to try while the server or its store is away; by default that of `connect`. */
  retryForMs?: number | undefined
  signal?: AbortSignal | undefined
}

export interface OnceOptions extends BeginOptions {
  /** The input of the function; another input under the same key is `KeyReused`. */
  input?: unknown
}

/** The result of a function that ran once, now or earlier. */
export interface Once<T> {
  value: T
  /** Whether the value comes from an earlier run. */
  replayed: boolean
}

/** A response as it is stored. */
export interface StoredResponse {
  status: number
  headers: Record<string, string | string[]>
  body: Uint8Array
}

export type Begun =
  | { state: "granted"; claim: Claim }
  | { state: "completed"; response: StoredResponse; expiresInMs: number }

const MAX_WAIT = 60_000

/** Begins a command; waits for another attempt's answer. Throws `Busy`, `KeyReused` or `OutcomeUnknown`. */
export async function beginCommand(transport: Transport, operation: string, key: string, options: BeginOptions): Promise<Begun> {
  const path = ["commands", checkedName("operation", operation, true), checkedName("key", key)]
  const leaseMs = checkedDuration("leaseMs", options.leaseMs ?? 30_000, 1, 3_600_000)
  const renewForMs = checkedDuration("renewForMs", options.renewForMs ?? 3_600_000, 0, Number.MAX_SAFE_INTEGER)
  const retentionMs = checkedDuration("retentionMs", options.retentionMs ?? 86_400_000, 1, 31_622_400_000)
  const until = performance.now() + checkedDuration("waitMs", options.waitMs ?? 10_000, 0, 86_400_000)
  const onUnknown = options.onUnknown ?? "refuse"
  if (onUnknown !== "refuse" && onUnknown !== "rerun") {
    throw new InvalidRequest("`onUnknown` must be \"refuse\" or \"rerun\"")
  }
  for (;;) {
    const waitMs = Math.round(Math.min(Math.max(until - performance.now(), 0), MAX_WAIT))
    const body: BeginCommand = { lease_ms: leaseMs, retention_ms: retentionMs, wait_ms: waitMs, on_unknown: onUnknown }
    if (options.fingerprint !== undefined) body.fingerprint = options.fingerprint
    try {
      const call = { method: "POST", path, body, waitMs, signal: options.signal, retryForMs: options.retryForMs }
      const answer = await transport.call({ ...call, afterLostAnswer: "repeat" })
      if (answer.status !== 201) {
        const completed = parseAnswer<CompletedCommand>(answer)
        return { state: "completed", response: storedResponse(completed), expiresInMs: completed.expires_in_ms }
      }
      const granted: Granted = parseAnswer<BegunCommand>(answer)
      // The settle decides whether the claim still holds, so the lease may count from the answer.
      const settings = { leaseMs, renewForMs, since: performance.now() }
      return { state: "granted", claim: new Claim(transport, path, granted, settings) }
    } catch (error) {
      if (!(error instanceof Busy) || performance.now() >= until) throw error
    }
  }
}

/** The fields that complete a command with this response. */
export function completionOf(response: StoredResponse): Omit<CompleteCommand, "token"> {
  const text = textOf(response.body)
  const body = text === undefined ? { body_base64: toBase64(response.body) } : { body: text }
  return { status: response.status, headers: response.headers as Record<string, never>, ...body }
}

function storedResponse(completed: CompletedCommand): StoredResponse {
  const { status, headers, body, body_base64 } = completed
  const bytes = typeof body_base64 === "string" ? fromBase64(body_base64) : utf8(body ?? "")
  return { status, headers: headers as StoredResponse["headers"], body: bytes }
}

/** Runs a function once for a key; every other call gets its result. */
export async function once<T>(
  transport: Transport,
  operation: string,
  key: string,
  work: (run: Run) => T | Promise<T>,
  options: OnceOptions,
): Promise<Once<T>> {
  if (typeof work !== "function") throw new InvalidRequest("`work` must be a function")
  if (options.input !== undefined && options.fingerprint !== undefined) {
    throw new InvalidRequest("pass `input` or `fingerprint`, not both")
  }
  const begin = { ...options }
  if (options.input !== undefined) {
    jsonOf(options.input)
    begin.fingerprint = await fingerprintOf([utf8(canonicalJson(options.input))])
  }
  const begun = await beginCommand(transport, operation, key, begin)
  if (begun.state === "completed") {
    return { value: resultOf<T>(begun.response), replayed: true }
  }
  const value = await begun.claim.run(work)
  const response = await storedResult(value, begun.claim)
  try {
    await begun.claim.complete(completionOf(response))
  } catch (error) {
    // The effect has happened, so a retry must not run.
    if (error instanceof InvalidRequest) await begun.claim.abandon()
    throw error
  }
  // Parsed again, so that the first caller gets what every other caller gets.
  return { value: resultOf<T>(response), replayed: false }
}

async function storedResult(value: unknown, claim: Claim): Promise<StoredResponse> {
  if (value === undefined) return { status: 204, headers: {}, body: new Uint8Array() }
  try {
    return { status: 200, headers: { "content-type": "application/json" }, body: utf8(jsonOf(value)) }
  } catch (error) {
    // The effect has happened, so a retry must not run.
    await claim.abandon()
    throw error
  }
}

function resultOf<T>(response: StoredResponse): T {
  if (response.body.length === 0) return undefined as T
  const text = textOf(response.body)
  try {
    return JSON.parse(text ?? "") as T
  } catch (cause) {
    // Another program, or an operator, may have completed the command with any answer.
    throw new InvalidRequest("the stored answer of this command is not JSON; it was completed by another program", { cause })
  }
}
