import { Busy, InvalidRequest, NotFound, VersionMismatch } from "./errors.js"
import { checkedDuration, checkedName, jsonOf, parseAnswer, retryDelay } from "./http.js"
import type { ApiAnswer, Transport } from "./http.js"
import { pause } from "./runtime.js"

export interface RecordRead<T> {
  value: T
  /** Changes with every write. */
  version: string
  /** When the record expires; `undefined`: never. */
  expiresInMs: number | undefined
}

export interface PutOptions {
  /** When the record expires. Without it a new record never does, and a changed one keeps its own. */
  ttlMs?: number | undefined
  /** Writes only if the record has this version. */
  ifVersion?: string | undefined
  /** Writes only if there is no record. */
  ifAbsent?: boolean | undefined
  signal?: AbortSignal | undefined
}

export interface UpdateOptions {
  ttlMs?: number | undefined
  /** How often to start over when other writers were faster; 20 by default. */
  attempts?: number | undefined
  signal?: AbortSignal | undefined
}

const MAX_TTL = 31_622_400_000

/** A JSON value with a version and, if you like, a time to live. */
export class RecordHandle<T = unknown> {
  readonly #transport: Transport
  readonly #path: readonly string[]

  /** @internal */
  constructor(transport: Transport, key: string) {
    this.#transport = transport
    this.#path = ["records", checkedName("key", key)]
  }

  /** The record; `undefined` where there is none. */
  async get(options: { signal?: AbortSignal } = {}): Promise<RecordRead<T> | undefined> {
    try {
      const answer = await this.#transport.call({ method: "GET", path: this.#path, signal: options.signal, afterLostAnswer: "repeat" })
      const expires = answer.headers.get("hapax-expires-in-ms")
      const expiresInMs = expires === null ? undefined : Number(expires)
      return { value: parseAnswer<T>(answer), version: versionOf(answer), expiresInMs }
    } catch (error) {
      if (error instanceof NotFound) return undefined
      throw error
    }
  }

  /** Writes the record and returns its new version. Throws `VersionMismatch` and writes nothing if a condition fails. */
  async put(value: T, options: PutOptions = {}): Promise<string> {
    if (options.ifAbsent && options.ifVersion !== undefined) {
      throw new InvalidRequest("pass `ifAbsent` or `ifVersion`, not both")
    }
    jsonOf(value)
    const headers: Record<string, string> = {}
    if (options.ifAbsent) headers["if-none-match"] = "*"
    if (options.ifVersion !== undefined) headers["if-match"] = quoted(options.ifVersion)
    const query = { ttl_ms: checkedTtl(options.ttlMs) }
    const call = { method: "PUT", path: this.#path, query, headers, body: value, signal: options.signal }
    return versionOf(await this.#transport.call({ ...call, afterLostAnswer: "unknown" }))
  }

  /** Merges a patch (RFC 7386: members replace, `null` removes) and returns the merged record. */
  async patch(patch: unknown, options: Omit<PutOptions, "ifAbsent"> = {}): Promise<RecordRead<T>> {
    const headers: Record<string, string> = {}
    if (options.ifVersion !== undefined) headers["if-match"] = quoted(options.ifVersion)
    const query = { ttl_ms: checkedTtl(options.ttlMs) }
    const call = { method: "PATCH", path: this.#path, query, headers, body: patch, signal: options.signal }
    const answer = await this.#transport.call({ ...call, afterLostAnswer: "unknown" })
    return { value: parseAnswer<T>(answer), version: versionOf(answer), expiresInMs: undefined }
  }

  /** Reads, changes and writes the record; starts over if another writer was faster. */
  async update(change: (value: T | undefined) => T | Promise<T>, options: UpdateOptions = {}): Promise<{ value: T; version: string }> {
    if (typeof change !== "function") throw new InvalidRequest("`change` must be a function")
    const attempts = options.attempts ?? 20
    for (let attempt = 1; ; attempt++) {
      const read = await this.get(options.signal ? { signal: options.signal } : {})
      const value = await change(read?.value)
      const condition = read === undefined ? { ifAbsent: true } : { ifVersion: read.version }
      try {
        return { value, version: await this.put(value, { ...condition, ttlMs: options.ttlMs, signal: options.signal }) }
      } catch (error) {
        if (!(error instanceof VersionMismatch)) throw error
        if (attempt >= attempts) {
          throw new Busy(`other writers changed the record ${attempts} times in a row; nothing was written`, { code: "record-contended", cause: error })
        }
        await pause(Math.min(retryDelay(attempt - 1) / 10, 100), options.signal)
      }
    }
  }

  /** Deletes the record; `false` where there is none. */
  async delete(options: { ifVersion?: string; signal?: AbortSignal } = {}): Promise<boolean> {
    const headers: Record<string, string> = options.ifVersion === undefined ? {} : { "if-match": quoted(options.ifVersion) }
    try {
      await this.#transport.call({ method: "DELETE", path: this.#path, headers, signal: options.signal, afterLostAnswer: "unknown" })
      return true
    } catch (error) {
      if (error instanceof NotFound) return false
      throw error
    }
  }
}

function versionOf(answer: ApiAnswer): string {
  return (answer.headers.get("etag") ?? "").replace(/^"|"$/g, "")
}

function quoted(version: string): string {
  if (typeof version !== "string" || !/^[\x21\x23-\x7e]+$/.test(version)) {
    throw new InvalidRequest("`ifVersion` must be a version that a read or a write returned")
  }
  return `"${version}"`
}

function checkedTtl(ttlMs: number | undefined): number | undefined {
  return ttlMs === undefined ? undefined : checkedDuration("ttlMs", ttlMs, 1, MAX_TTL)
}
