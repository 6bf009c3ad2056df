/** The decisions of an `Idempotency-Key` middleware, whatever the framework. */
import type { Claim } from "../claim.js"
import type { Client } from "../client.js"
import { completionOf } from "../command.js"
import type { BeginOptions } from "../command.js"
import { Busy, InvalidRequest, KeyReused, Lost, OutcomeUnknown, StoreUnavailable } from "../errors.js"
import { checkedDuration } from "../http.js"
import { pause } from "../runtime.js"
import { RefusedRequest } from "./problem.js"
import type { OutgoingResponse } from "./problem.js"
import { fingerprintOfRequest, readKey } from "./request.js"
import type { KeyOptions, RequestHead, RequestKey } from "./request.js"
import { capture, judge, replay, tombstone } from "./response.js"
import type { Verdict } from "./response.js"

/** An event in the life of a keyed request. Never identifies a caller. */
export type IdempotencyEvent =
  | "started"
  | "kept"
  | "not-kept"
  | "given-back"
  | "replayed"
  | "conflict"
  | "mismatch"
  | "lost"
  | "unknown"
  | "store-error"
  | "unprotected"
  | "refused"

export interface IdempotencyOptions extends KeyOptions {
  /** The hapax server, from `connect`. */
  client: Client
  /** How long a duplicate waits for the first one's answer; 10 s by default. */
  waitMs?: number | undefined
  /** How long a run is believed alive without renewal; 30 s by default. */
  leaseMs?: number | undefined
  /** How long answers, and unknown outcomes, are kept; 24 h by default. */
  retentionMs?: number | undefined
  /** For how long a run is renewed; an hour by default. A handler that never answers is unknown after it. */
  renewForMs?: number | undefined
  /** The largest keyed request, and the largest answer that is kept; 1 MiB by default. */
  maxBodyBytes?: number | undefined
  /** How long the body of a keyed request may take to arrive; 30 s by default. */
  bodyTimeoutMs?: number | undefined
  /** How long the store may keep a request waiting, beside the wait for another attempt; 5 s by default. */
  storeTimeoutMs?: number | undefined
  /** The policy for an attempt that may or may not have acted: refuse (the default) or run again. */
  onUnknown?: "refuse" | "rerun" | undefined
  /** The policy for a store that gives no answer: 503 (`closed`, the default), or run without protection (`open`). */
  onStoreError?: "closed" | "open" | undefined
  /** Verdicts for single statuses. */
  verdicts?: Readonly<Record<number, Verdict>> | undefined
  /** Told what happens; the error, where there is one, names neither keys nor callers. */
  onEvent?: ((event: IdempotencyEvent, method: string, error?: unknown) => void) | undefined
}

/** The response of a handler. `body` is `undefined` where it is too large to store, or an event stream. */
export interface HandlerResponse {
  status: number
  /** Names in lower case. */
  headers: [name: string, value: string][]
  body: Uint8Array | undefined
}

/** The way of a keyed request: an answer at once, or a run. `run` is `undefined` where it is unprotected. */
export type Admission = { answer: OutgoingResponse } | { answer: undefined; run: FirstRun | undefined }

/** How long storing an answer is tried again after it was sent. */
const SETTLE_FOR = 600_000

export class IdempotencyGate {
  readonly options: IdempotencyOptions
  readonly maxBodyBytes: number
  readonly bodyTimeoutMs: number
  readonly storeTimeoutMs: number
  readonly #running = new Set<Promise<unknown>>()
  #closed = false

  constructor(options: IdempotencyOptions) {
    if (typeof options?.client?.begin !== "function") {
      throw new InvalidRequest("`client` must be a client from `connect`")
    }
    this.options = options
    this.maxBodyBytes = options.maxBodyBytes ?? 1024 * 1024
    this.bodyTimeoutMs = checkedDuration("bodyTimeoutMs", options.bodyTimeoutMs ?? 30_000, 1, 3_600_000)
    this.storeTimeoutMs = checkedDuration("storeTimeoutMs", options.storeTimeoutMs ?? 5_000, 1, 3_600_000)
  }

  /** The key of a request; `undefined` where it has none and needs none. Throws `RefusedRequest`. */
  async readKey(head: RequestHead): Promise<RequestKey | undefined> {
    const key = await readKey(head, this.options)
    if (key !== undefined && this.#closed) throw new RefusedRequest("shutting-down", "nothing was run; send the request again")
    return key
  }

  record(event: IdempotencyEvent, method: string, error?: unknown): void {
    this.options.onEvent?.(event, method, error)
  }

  /** Claims a key: the request runs, or gets the answer of another attempt. */
  async admit(head: RequestHead, key: RequestKey, body: Uint8Array): Promise<Admission> {
    const { client, waitMs, leaseMs, retentionMs, renewForMs, onUnknown, onStoreError } = this.options
    const fingerprint = await fingerprintOfRequest(head, body, this.options)
    const begin: BeginOptions = { fingerprint, waitMs, leaseMs, retentionMs, renewForMs, onUnknown, retryForMs: this.storeTimeoutMs }
    // The HTTP API knows no callers within a tenant, so the caller is part of the operation.
    const operation = key.caller === undefined ? key.operation : `${key.operation} caller=${key.caller}`
    try {
      const begun = await client.begin(operation, key.key, begin)
      if (begun.state === "completed") {
        this.record("replayed", head.method)
        return { answer: replay(begun.response, begun.expiresInMs) }
      }
      this.record("started", head.method)
      const winner = () => this.#winner(operation, key.key, begin)
      return { answer: undefined, run: new FirstRun(this, begun.claim, head.method, winner) }
    } catch (error) {
      if (error instanceof StoreUnavailable && onStoreError === "open") {
        this.record("unprotected", head.method, error)
        return { answer: undefined, run: undefined }
      }
      return { answer: this.#problemOf(error, head.method).response }
    }
  }

  #problemOf(error: unknown, method: string): RefusedRequest {
    if (error instanceof Busy) {
      this.record("conflict", method)
      const detail = "the first request with this key has no response yet; send the request again"
      return new RefusedRequest("in-progress", detail, { retryAfterMs: error.retryAfterMs ?? 1000 })
    }
    if (error instanceof KeyReused) {
      this.record("mismatch", method)
      return new RefusedRequest("key-reused", "this key was used with another path, query, content type or body; use a new one")
    }
    if (error instanceof OutcomeUnknown) {
      this.record("unknown", method)
      const detail = "an earlier attempt ended without a response; find out whether it acted, then settle or release the key"
      return new RefusedRequest("outcome-unknown", detail)
    }
    this.record("store-error", method, error)
    if (error instanceof StoreUnavailable) return new RefusedRequest("store-unavailable", "nothing was run; try again")
    return new RefusedRequest("internal", "the service's own hapax server refused the call; nothing was run")
  }

  /** The answer of the attempt that has taken over. */
  async #winner(operation: string, key: string, begin: BeginOptions): Promise<OutgoingResponse> {
    try {
      const begun = await this.options.client.begin(operation, key, { ...begin, waitMs: 0, onUnknown: "refuse" })
      if (begun.state === "completed") return replay(begun.response, begun.expiresInMs)
      // The attempt that took over has given the key back meanwhile: so does this one.
      await begun.claim.giveBack()
    } catch {
      // Whatever it is, the other attempt has no answer yet.
    }
    const detail = "another attempt has taken over; send the request again"
    return new RefusedRequest("in-progress", detail, { retryAfterMs: 1000 }).response
  }

  /** Counts a run until its outcome is stored. */
  track(run: Promise<unknown>): void {
    const ended = run.catch(() => {}).finally(() => this.#running.delete(ended))
    this.#running.add(ended)
  }

  /** Refuses new keyed requests, and waits until all running ones are stored, at most for `timeoutMs`. */
  async drain(timeoutMs = 20_000): Promise<void> {
    this.#closed = true
    const stop = new AbortController()
    const all = (async () => {
      while (this.#running.size > 0) await Promise.all(this.#running)
    })()
    await Promise.race([all, pause(timeoutMs, stop.signal).catch(() => {})])
    stop.abort()
  }
}

/** The first request with a key while its handler runs. */
export class FirstRun {
  readonly attempt: number
  readonly fence: number
  readonly #gate: IdempotencyGate
  readonly #claim: Claim
  readonly #method: string
  readonly #winner: () => Promise<OutgoingResponse>
  readonly #ended: () => void

  constructor(gate: IdempotencyGate, claim: Claim, method: string, winner: () => Promise<OutgoingResponse>) {
    this.#gate = gate
    this.#claim = claim
    this.#method = method
    this.#winner = winner
    this.attempt = claim.attempt
    this.fence = claim.fence
    let ended = () => {}
    gate.track(new Promise<void>((resolve) => (ended = resolve)))
    this.#ended = ended
  }

  /** Ends the run with its handler's response. Returns the answer to send instead, where another attempt has taken over. */
  async finish(response: HandlerResponse): Promise<OutgoingResponse | undefined> {
    const { options, maxBodyBytes } = this.#gate
    const store = response.headers.find(([name]) => name === "idempotency-store")?.[1]
    const verdict = judge(response.status, store, options.verdicts ?? {})
    if (verdict === "give-back") {
      await this.giveBack()
      return undefined
    }
    if (verdict === "unknown") {
      await this.abandon()
      return undefined
    }
    const stored = capture(response.status, response.headers, response.body, maxBodyBytes)
    return this.#settle(stored.headers["hapax-not-kept"] === undefined ? "kept" : "not-kept", stored)
  }

  /** Lets the next request with this key run: nothing has happened. */
  async giveBack(): Promise<void> {
    await this.#end("given-back", this.#claim.giveBack())
  }

  /** Marks the outcome as unknown: the handler crashed, or its answer broke off. */
  async abandon(): Promise<void> {
    await this.#end("unknown", this.#claim.abandon())
  }

  async #end(event: IdempotencyEvent, ending: Promise<void>): Promise<void> {
    try {
      await ending
      this.#gate.record(event, this.#method)
    } catch (error) {
      this.#gate.record("store-error", this.#method, error)
    } finally {
      this.#ended()
    }
  }

  /** Stores the answer. While the store is away this goes on after the answer was sent: its effect has happened. */
  async #settle(event: IdempotencyEvent, stored: ReturnType<typeof tombstone>): Promise<OutgoingResponse | undefined> {
    let instead: OutgoingResponse | undefined
    const settling = (async () => {
      try {
        await this.#claim.complete(completionOf(stored), SETTLE_FOR)
        this.#gate.record(event, this.#method)
      } catch (error) {
        if (error instanceof InvalidRequest && event === "kept") {
          // The server takes no such answer: too large once it is encoded, or a header that it does not know.
          instead = await this.#settle("not-kept", tombstone(stored.status))
        } else if (error instanceof Lost) {
          this.#gate.record("lost", this.#method)
          instead = await this.#winner()
        } else {
          this.#gate.record("store-error", this.#method, error)
        }
      } finally {
        this.#ended()
      }
    })()
    const stop = new AbortController()
    await Promise.race([settling, pause(this.#gate.storeTimeoutMs, stop.signal).catch(() => {})])
    stop.abort()
    return instead
  }
}
