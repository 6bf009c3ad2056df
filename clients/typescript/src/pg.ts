/**
 * Exactly once in your own PostgreSQL transaction: the claim, the effect, the answer and the outgoing messages commit together, or not
 * at all. For node-postgres (`pg`), over the SQL functions that `hapax migrate` makes.
 */
import type { Once, StoredResponse } from "./command.js"
import { AccessDenied, Busy, HapaxError, IncompatibleServer, InvalidRequest, KeyReused, Lost, OutcomeUnknown, StoreUnavailable } from "./errors.js"
import { checkedDuration, checkedName, jsonOf, retryDelay } from "./http.js"
import { RefusedRequest } from "./idempotency/problem.js"
import type { OutgoingResponse } from "./idempotency/problem.js"
import { fingerprintOfRequest, readKey } from "./idempotency/request.js"
import type { KeyOptions, RequestHead } from "./idempotency/request.js"
import { capture, judge, replay } from "./idempotency/response.js"
import { canonicalJson, fingerprintOf, pause, textOf, utf8 } from "./runtime.js"

export type { OutgoingResponse } from "./idempotency/problem.js"
export type { CallerScope, KeyOptions, RequestHead } from "./idempotency/request.js"

/** A connection of node-postgres, inside a transaction. */
export interface Queryable {
  // eslint-disable-next-line @typescript-eslint/no-explicit-any -- rows have the types of their query
  query: (text: string, values?: any[]) => Promise<{ rows: any[] }>
}

/** A `Pool` of node-postgres. */
export interface ConnectionPool {
  connect: () => Promise<Queryable & { release: (error?: Error | boolean) => void }>
}

export interface SqlOptions {
  /** The owner of the data; `default` by default. */
  tenant?: string | undefined
}

export interface SqlBeginOptions extends SqlOptions {
  /** A text that is the same for the same request; another one under the same key is `reused`. */
  fingerprint?: string | undefined
  /** How long a claim that is committed without its end is believed alive; 30 s by default. */
  leaseMs?: number | undefined
  /** How long the answer is kept; 24 h by default. */
  retentionMs?: number | undefined
  onUnknown?: "refuse" | "rerun" | undefined
  /** Waits for another transaction with this key, at most for `lock_timeout`; otherwise it is `in-progress` at once. */
  wait?: boolean | undefined
}

/** The answer of `hapax_begin`: an expected outcome is a state, and the transaction goes on. */
export type SqlBegun =
  | { state: "granted"; token: string; fence: number; attempt: number }
  | { state: "completed"; response: StoredResponse }
  | { state: "in-progress"; retryAfterMs: number }
  | { state: "reused" }
  | { state: "unknown" }

const milliseconds = (value: number) => `${value} milliseconds`

/** Begins a command in this transaction. */
export async function begin(db: Queryable, operation: string, key: string, options: SqlBeginOptions = {}): Promise<SqlBegun> {
  const values = [
    checkedName("operation", operation, true),
    checkedName("key", key),
    options.fingerprint ?? "",
    options.tenant ?? "default",
    milliseconds(checkedDuration("leaseMs", options.leaseMs ?? 30_000, 1, 3_600_000)),
    milliseconds(checkedDuration("retentionMs", options.retentionMs ?? 86_400_000, 1, 31_622_400_000)),
    options.onUnknown ?? "refuse",
    options.wait ?? false,
  ]
  const text = `SELECT state, token, fence, attempt, status, headers, body, (extract(epoch FROM retry_after) * 1000)::float8 AS retry_after_ms
    FROM hapax_begin(operation => $1, key => $2, fingerprint => $3, tenant => $4, lease => $5::interval, retention => $6::interval,
      on_unknown => $7, wait => $8)`
  const row = await onlyRow(db, text, values)
  switch (row["state"]) {
    case "granted":
      return { state: "granted", token: String(row["token"]), fence: Number(row["fence"]), attempt: Number(row["attempt"]) }
    case "completed": {
      const headers = row["headers"] as StoredResponse["headers"]
      return { state: "completed", response: { status: Number(row["status"]), headers, body: row["body"] as Uint8Array } }
    }
    case "in-progress":
      return { state: "in-progress", retryAfterMs: Number(row["retry_after_ms"] ?? 100) }
    case "reused":
    case "unknown":
      return { state: row["state"] }
    default:
      throw new IncompatibleServer("hapax_begin answered with a state that this package does not know; upgrade the package")
  }
}

/** Completes a command in this transaction. Throws `Lost` if it belongs to another attempt: roll back then. */
export async function complete(db: Queryable, operation: string, key: string, token: string, response: StoredResponse, options: SqlOptions = {}): Promise<void> {
  const values = [operation, key, token, response.status, JSON.stringify(response.headers), asBytea(response.body), options.tenant ?? "default"]
  const text = "SELECT hapax_complete(operation => $1, key => $2, token => $3, status => $4, headers => $5::jsonb, body => $6, tenant => $7) AS done"
  if ((await onlyRow(db, text, values))["done"] !== true) throw lost()
}

/** Reports in this transaction that a command failed and may run again. Throws `Lost` if it belongs to another attempt. */
export async function fail(db: Queryable, operation: string, key: string, token: string, options: SqlOptions = {}): Promise<void> {
  const text = "SELECT hapax_fail(operation => $1, key => $2, token => $3, tenant => $4) AS done"
  if ((await onlyRow(db, text, [operation, key, token, options.tenant ?? "default"]))["done"] !== true) throw lost()
}

/** Records in this transaction that a consumer has received a message; `false` for a duplicate. */
export async function receive(db: Queryable, consumer: string, messageId: string, options: SqlOptions & { retentionMs?: number } = {}): Promise<boolean> {
  const retentionMs = checkedDuration("retentionMs", options.retentionMs ?? 2_592_000_000, 1, 31_622_400_000)
  const values = [checkedName("consumer", consumer), checkedName("messageId", messageId), options.tenant ?? "default", milliseconds(retentionMs)]
  const text = "SELECT hapax_receive(consumer => $1, message_id => $2, tenant => $3, retention => $4::interval) AS first"
  return (await onlyRow(db, text, values))["first"] === true
}

export interface EnqueueOptions extends SqlOptions {
  headers?: Record<string, string> | undefined
  /** `outbox` by default, which `hapax relay` drains. */
  queue?: string | undefined
  notBefore?: Date | undefined
}

/** Enqueues a message in this transaction and returns its id. It is sent if and only if the transaction commits. */
export async function enqueue(db: Queryable, topic: string, key: string, payload: unknown, options: EnqueueOptions = {}): Promise<string> {
  const body = payload instanceof Uint8Array ? payload : utf8(jsonOf(payload))
  const headers = { ...(payload instanceof Uint8Array ? {} : { "content-type": "application/json" }), ...options.headers }
  const values = [topic, key, asBytea(body), JSON.stringify(headers), options.queue ?? "outbox", options.notBefore ?? null, options.tenant ?? "default"]
  const text = `SELECT hapax_enqueue(topic => $1, key => $2, payload => $3, headers => $4::jsonb, queue => $5,
    not_before => coalesce($6::timestamptz, now()), tenant => $7) AS id`
  return String((await onlyRow(db, text, values))["id"])
}

export interface TransactionOptions {
  isolation?: "read committed" | "repeatable read" | "serializable" | undefined
  /** How often to begin again after a serialization failure, a deadlock or a lost connection; 5 by default. */
  attempts?: number | undefined
  /** The longest that one statement may take; 30 s by default. */
  statementTimeoutMs?: number | undefined
  signal?: AbortSignal | undefined
}

export interface SqlOnceOptions extends SqlBeginOptions, TransactionOptions {
  /** The input of the function; another input under the same key is `KeyReused`. */
  input?: unknown
  /** How long to wait for another transaction with this key, without holding a connection; 10 s by default. */
  waitMs?: number | undefined
}

/**
 * Runs a function once for a key, in a transaction: its statements and its result commit together. Every other call gets the result.
 * A connection that is lost at any moment is harmless: the next attempt finds everything or nothing.
 */
export async function once<T>(pool: ConnectionPool, operation: string, key: string, work: (db: Queryable, run: { fence: number; attempt: number }) => Promise<T>, options: SqlOnceOptions = {}): Promise<Once<T>> {
  const asked = { ...options }
  if (options.input !== undefined) {
    if (options.fingerprint !== undefined) throw new InvalidRequest("pass `input` or `fingerprint`, not both")
    jsonOf(options.input)
    asked.fingerprint = await fingerprintOf([utf8(canonicalJson(options.input))])
  }
  const settled = await settleOnce(pool, operation, key, asked, async (db, run) => {
    const value = await work(db, run)
    if (value === undefined) return { status: 204, headers: {}, body: new Uint8Array() }
    return { status: 200, headers: { "content-type": "application/json" }, body: utf8(jsonOf(value)) }
  })
  const { body } = settled.response
  try {
    return { value: (body.length === 0 ? undefined : JSON.parse(textOf(body) ?? "")) as T, replayed: settled.replayed }
  } catch (cause) {
    throw new InvalidRequest("the stored answer of this command is not JSON; it was completed by another program", { cause })
  }
}

/** A request to answer once: its head, and its body as the client sent it. */
export interface KeyedRequest {
  head: RequestHead
  body: Uint8Array
}

/** The answer of a handler: bytes, text, or a JSON value. */
export interface HandlerAnswer {
  status?: number
  headers?: Record<string, string>
  body?: unknown
}

export type AnswerOptions = KeyOptions & Omit<SqlOnceOptions, "input" | "fingerprint"> & { maxBodyBytes?: number }

/**
 * Answers a request with an `Idempotency-Key` in one transaction: what the handler writes and its answer commit together. Retries get
 * the same answer. An answer that is not kept (5xx, 401, 429 …) rolls everything back.
 */
export async function answerOnce(pool: ConnectionPool, request: KeyedRequest, options: AnswerOptions, handler: (db: Queryable) => Promise<HandlerAnswer>): Promise<OutgoingResponse> {
  try {
    const key = await readKey(request.head, options)
    if (key === undefined) return await inTransaction(pool, options, async (db) => ({ commit: true, result: outgoingOf(await handler(db)) }))
    const operation = key.caller === undefined ? key.operation : `${key.operation} caller=${key.caller}`
    const { fingerprint: _, ...rest } = options
    const begin = { ...rest, fingerprint: await fingerprintOfRequest(request.head, request.body, options) }
    let answered: OutgoingResponse | undefined
    const settled = await settleOnce(pool, operation, key.key, begin, async (db) => {
      answered = outgoingOf(await handler(db))
      const verdict = judge(answered.status, answered.headers.find(([name]) => name === "idempotency-store")?.[1], {})
      if (verdict !== "keep") throw new NotKept(answered)
      return capture(answered.status, answered.headers, answered.body, options.maxBodyBytes ?? 1024 * 1024 - 4096)
    })
    return settled.replayed || answered === undefined ? replay(settled.response, undefined) : answered
  } catch (error) {
    if (error instanceof NotKept) return error.answer
    if (error instanceof RefusedRequest) return error.response
    if (error instanceof Busy) {
      const detail = "the first request with this key has no response yet; send the request again"
      return new RefusedRequest("in-progress", detail, { retryAfterMs: error.retryAfterMs ?? 1000 }).response
    }
    if (error instanceof KeyReused) {
      return new RefusedRequest("key-reused", "this key was used with another path, query, content type or body; use a new one").response
    }
    if (error instanceof OutcomeUnknown) {
      return new RefusedRequest("outcome-unknown", "an earlier attempt ended without a response; find out whether it acted, then settle or release the key").response
    }
    if (error instanceof StoreUnavailable) return new RefusedRequest("store-unavailable", "nothing was run; try again").response
    throw error
  }
}

/** Rolls the transaction back and answers all the same. */
class NotKept extends Error {
  readonly answer: OutgoingResponse

  constructor(answer: OutgoingResponse) {
    super("the answer is not kept")
    this.answer = answer
  }
}

function outgoingOf(answer: HandlerAnswer): OutgoingResponse {
  const headers = Object.entries(answer.headers ?? {}).map(([name, value]): [string, string] => [name.toLowerCase(), value])
  const { body } = answer
  if (body === undefined) return { status: answer.status ?? 200, headers, body: new Uint8Array() }
  const isRaw = typeof body === "string" || body instanceof Uint8Array
  if (!isRaw && !headers.some(([name]) => name === "content-type")) headers.push(["content-type", "application/json"])
  return { status: answer.status ?? 200, headers, body: typeof body === "string" ? utf8(body) : body instanceof Uint8Array ? body : utf8(jsonOf(body)) }
}

async function settleOnce(
  pool: ConnectionPool,
  operation: string,
  key: string,
  options: SqlBeginOptions & TransactionOptions & { waitMs?: number | undefined },
  work: (db: Queryable, run: { fence: number; attempt: number }) => Promise<StoredResponse>,
): Promise<{ response: StoredResponse; replayed: boolean }> {
  const until = performance.now() + checkedDuration("waitMs", options.waitMs ?? 10_000, 0, 86_400_000)
  for (;;) {
    const begun = await inTransaction(pool, options, async (db): Promise<Ended<Exclude<SqlBegun, { state: "granted" }> | { state: "ran"; response: StoredResponse }>> => {
      const begun = await begin(db, operation, key, options)
      if (begun.state !== "granted") return { commit: false, result: begun }
      const response = await work(db, begun)
      await complete(db, operation, key, begun.token, response, options)
      return { commit: true, result: { state: "ran", response } }
    })
    if (begun.state === "ran") return { response: begun.response, replayed: false }
    if (begun.state === "completed") return { response: begun.response, replayed: true }
    if (begun.state === "reused") throw new KeyReused("the key belongs to another request; use a new one")
    if (begun.state === "unknown") {
      throw new OutcomeUnknown("an earlier attempt outside a transaction ended without an answer; find out whether it acted, then settle or release the command")
    }
    if (performance.now() >= until) throw new Busy("another attempt is running; try again later", { retryAfterMs: begun.retryAfterMs })
    await pause(Math.min(Math.max(begun.retryAfterMs, 10), 250), options.signal)
  }
}

interface Ended<T> {
  commit: boolean
  result: T
}

/** Runs a transaction; begins again after a serialization failure, a deadlock or a lost connection. */
async function inTransaction<T>(pool: ConnectionPool, options: TransactionOptions, work: (db: Queryable) => Promise<Ended<T>>): Promise<T> {
  const attempts = options.attempts ?? 5
  const timeoutMs = checkedDuration("statementTimeoutMs", options.statementTimeoutMs ?? 30_000, 1, 3_600_000)
  const isolation = options.isolation ?? "read committed"
  if (!["read committed", "repeatable read", "serializable"].includes(isolation)) {
    throw new InvalidRequest("`isolation` must be \"read committed\", \"repeatable read\" or \"serializable\"")
  }
  for (let attempt = 0; ; attempt++) {
    let connection: Awaited<ReturnType<ConnectionPool["connect"]>> | undefined
    try {
      connection = await pool.connect()
      await connection.query(`BEGIN ISOLATION LEVEL ${isolation}`)
      // For this transaction alone, so that it is safe behind PgBouncer.
      await connection.query(`SET LOCAL statement_timeout = ${timeoutMs}`)
      const { commit, result } = await work(connection)
      await connection.query(commit ? "COMMIT" : "ROLLBACK")
      connection.release()
      return result
    } catch (error) {
      const known = databaseError(error)
      const isCut = known instanceof StoreUnavailable && known.code === "connection-lost"
      if (connection !== undefined) {
        // A connection that cannot roll back is not used again.
        const failed = isCut ? true : await connection.query("ROLLBACK").then(() => false, () => true)
        connection.release(failed)
      }
      if (!(known instanceof StoreUnavailable) || attempt + 1 >= attempts) throw known
      await pause(retryDelay(attempt), options.signal)
    }
  }
}

async function onlyRow(db: Queryable, text: string, values: unknown[]): Promise<Record<string, unknown>> {
  try {
    const { rows } = await db.query(text, values)
    return (rows[0] ?? {}) as Record<string, unknown>
  } catch (error) {
    throw databaseError(error)
  }
}

/** The typed error for an error of PostgreSQL or of the connection; other errors stay as they are. */
function databaseError(error: unknown): unknown {
  if (typeof error !== "object" || error === null || error instanceof HapaxError) return error
  const { code, message } = error as { code?: unknown; message?: unknown }
  if (code === "40001" || code === "40P01") {
    return new StoreUnavailable("the transaction could not be serialized with others; nothing was committed", { code: "serialization-failure", cause: error })
  }
  if (code === "42883" && String(message).includes("hapax_")) {
    return new IncompatibleServer("the database has no functions of hapax, or older ones; run `hapax migrate --store postgres://…`", { cause: error })
  }
  if (code === "42501" && String(message).includes("hapax_")) {
    return new AccessDenied("the database role may not call hapax's functions; run `SELECT hapax_grant_app('role')` as their owner", { cause: error })
  }
  if (code === "22023") return new InvalidRequest(String(message), { cause: error })
  const isCut = typeof code === "string" && /^(08|57P0[1-3]|53300|ECONN|EPIPE|ETIMEDOUT|ENOTFOUND|EAI_AGAIN)/.test(code)
  if (isCut || /Connection terminated|connection timeout|timeout exceeded when trying to connect|Client was closed/i.test(String(message))) {
    return new StoreUnavailable("the connection to the database was lost", { code: "connection-lost", cause: error })
  }
  return error
}

function lost(): Lost {
  return new Lost("the command belongs to another attempt, or its token is wrong; roll the transaction back")
}

/** node-postgres writes a Uint8Array that is no Buffer as JSON. */
function asBytea(bytes: Uint8Array): Uint8Array {
  const { Buffer } = globalThis as { Buffer?: { from: (bytes: ArrayBufferLike, offset: number, length: number) => Uint8Array } }
  return Buffer === undefined ? bytes : Buffer.from(bytes.buffer, bytes.byteOffset, bytes.byteLength)
}
